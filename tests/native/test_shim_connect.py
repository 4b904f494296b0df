# SPDX-License-Identifier: Apache-2.0
"""Streams of thaw-shim to TCP ports."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "vm"),
]

import shim  # noqa: E402
import shim_server  # noqa: E402
from shim_server import REQUEST, Server, code, cpu_ticks, eventually  # noqa: E402

pytestmark = shim_server.needs_shim
server = shim_server.server


@contextmanager
def listener(family: int = socket.AF_INET) -> Iterator[tuple[socket.socket, int]]:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(shim_server.WAIT_S)
        sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        sock.listen(512)
        yield sock, sock.getsockname()[1]


def ask(server: Server, port: int, behind: bytes = b"") -> socket.socket:
    sock = server.connect()
    sock.sendall(shim.frame(shim.CONNECT, struct.pack("<II", port, 0)) + behind)
    return sock


def opened(server: Server, port: int) -> socket.socket:
    sock = ask(server, port)
    assert shim.answer(sock) is None
    return sock


def test_both_ways_and_half_closes(server: Server) -> None:
    with listener() as (listening, port):
        with opened(server, port) as ours:
            theirs, _ = listening.accept()
            ours.sendall(b"question")
            assert shim.read_exact(theirs, 8) == b"question"
            ours.shutdown(socket.SHUT_WR)
            assert theirs.recv(1) == b""
            theirs.sendall(b"answer")
            assert shim.read_exact(ours, 6) == b"answer"
            theirs.close()
            assert ours.recv(1) == b""
        # The other side ends first.
        with opened(server, port) as ours:
            theirs, _ = listening.accept()
            theirs.sendall(b"hello")
            theirs.shutdown(socket.SHUT_WR)
            assert shim.read_exact(ours, 5) == b"hello" and ours.recv(1) == b""
            ours.sendall(b"bye")
            ours.shutdown(socket.SHUT_WR)
            assert shim.read_exact(theirs, 3) == b"bye" and theirs.recv(1) == b""
            theirs.close()


def test_a_half_close_behind_the_other_loses_nothing(server: Server) -> None:
    data = os.urandom(1 << 16) * 16
    with listener() as (listening, port), opened(server, port) as ours:
        theirs, _ = listening.accept()
        theirs.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b""
        # More than the buffers between hold: the end comes while some of it is still unread.
        got = bytearray()
        sender = threading.Thread(
            target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR))  # type: ignore[func-returns-value]
        )
        sender.start()
        while piece := theirs.recv(4096):
            got += piece
        sender.join()
        assert got == data
        theirs.close()


def test_bytes_right_behind_the_request(server: Server) -> None:
    behind = os.urandom(50000)
    with listener() as (listening, port), ask(server, port, behind) as ours:
        theirs, _ = listening.accept()
        assert shim.read_exact(theirs, len(behind)) == behind
        assert shim.answer(ours) is None
        theirs.close()


def test_ipv6(server: Server) -> None:
    try:
        with listener(socket.AF_INET6) as (listening, port), opened(server, port) as ours:
            theirs, _ = listening.accept()
            theirs.sendall(b"six")
            assert shim.read_exact(ours, 3) == b"six"
            theirs.close()
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        pytest.skip("no IPv6 loopback here")


def test_nobody_listens(server: Server) -> None:
    with listener() as (_, port):
        pass
    with ask(server, port) as sock:
        error = shim.answer(sock)
        assert error and error[:2] == (REQUEST, errno.ECONNREFUSED)
        assert "refused" in error[2] and sock.recv(1) == b""


@pytest.mark.parametrize("body", [(0, 0), (65536, 0), (80, 1)])
def test_malformed(server: Server, body: tuple[int, int]) -> None:
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.CONNECT, struct.pack("<II", *body)))
        error = shim.answer(sock)
        assert error and error[:2] == (REQUEST, errno.EINVAL)


def test_resets(server: Server) -> None:
    with listener() as (listening, port):
        with opened(server, port) as ours:
            theirs, _ = listening.accept()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            assert ours.recv(1) == b""
        # The host's side goes away while the other has much to say, and while it is silent.
        for talk in (True, False):
            ours = opened(server, port)
            theirs, _ = listening.accept()
            if talk:
                theirs.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    while True:
                        theirs.send(b"x" * 65536)
                theirs.settimeout(shim_server.WAIT_S)
            ours.close()
            with pytest.raises((ConnectionResetError, BrokenPipeError, EOFError)):
                while True:
                    if not theirs.recv(65536):
                        # An ordinary end, as TCP tells it; a write finds out.
                        theirs.send(b"x")
                        time.sleep(0.01)
            theirs.close()


def test_much_both_ways_at_once(server: Server) -> None:
    size = 20 << 20
    block = os.urandom(1 << 16)

    def send(sock: socket.socket) -> None:
        for _ in range(size // len(block)):
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)

    def digest(sock: socket.socket) -> str:
        total = hashlib.sha256()
        while data := sock.recv(1 << 16):
            total.update(data)
        return total.hexdigest()

    want = hashlib.sha256(block * (size // len(block))).hexdigest()
    rss = server.rss_kib()
    with listener() as (listening, port), opened(server, port) as ours:
        theirs, _ = listening.accept()
        threads = [threading.Thread(target=send, args=(sock,)) for sock in (ours, theirs)]
        for thread in threads:
            thread.start()
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(digest(theirs)))
        reader.start()
        assert digest(ours) == want
        reader.join()
        assert found == [want]
        for thread in threads:
            thread.join()
        theirs.close()
    assert server.rss_kib() < rss + 1024


def test_a_stalled_one_stalls_nobody(server: Server) -> None:
    with listener() as (listening, port), opened(server, port) as ours:
        theirs, _ = listening.accept()
        for sock in (ours, theirs):
            sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                while True:
                    sock.send(b"x" * 65536)
        cpu = cpu_ticks(server.proc.pid)
        time.sleep(0.3)
        assert cpu_ticks(server.proc.pid) - cpu <= 2, "the shim spins"
        assert code(server.run("true")) == 0
        with opened(server, port):
            pass
        theirs.close()


def test_many_beside_all_the_commands(server: Server) -> None:
    execs = [server.start(["sleep", "1000"]) for _ in range(128)]
    for sock in execs:
        assert next(shim.frames(sock))[0] == shim.STARTED
    fds = server.fds()
    with listener() as (listening, port):
        pairs = []
        for _ in range(256):
            ours = opened(server, port)
            pairs.append((ours, listening.accept()[0]))
        with ask(server, port) as sock:
            error = shim.answer(sock)
            assert error and error[:2] == (REQUEST, errno.EAGAIN)
        for i, (ours, theirs) in enumerate(pairs):
            ours.sendall(b"%03d" % i)
            theirs.sendall(b"%03d" % (i + 1))
        for i, (ours, theirs) in enumerate(pairs):
            assert shim.read_exact(theirs, 3) == b"%03d" % i
            assert shim.read_exact(ours, 3) == b"%03d" % (i + 1)
            ours.close()
            theirs.close()
    assert eventually(lambda: server.fds() <= fds)
    for sock in execs:
        sock.close()
    assert eventually(lambda: not server.children())


def test_checkpoint_waits_for_it(server: Server) -> None:
    with listener() as (listening, port):
        with opened(server, port) as ours:
            theirs, _ = listening.accept()
            with server.connect() as sock:
                sock.sendall(shim.frame(shim.CHECKPOINT))
                assert shim.answer(sock) is None
            assert code(server.run("true")) == 0
            assert b"checkpoint" not in Path(server.log.name).read_bytes()
            ours.sendall(b"x")
            assert shim.read_exact(theirs, 1) == b"x"
            theirs.close()
        assert eventually(lambda: b"no /dev/thaw" in Path(server.log.name).read_bytes())
