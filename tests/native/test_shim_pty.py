# SPDX-License-Identifier: Apache-2.0
"""Terminals of thaw-shim."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "vm"),
]

import shim  # noqa: E402
import shim_server  # noqa: E402
from shim_server import REQUEST, Server, alive, code, cpu_ticks, eventually  # noqa: E402

pytestmark = shim_server.needs_shim
server = shim_server.server


def type_in(sock: socket.socket, text: bytes) -> None:
    sock.sendall(shim.frame(shim.STDIN, text))


def read_to(sock: socket.socket, pattern: bytes) -> bytes:
    """Output up to where @pattern has come."""
    seen = bytearray()
    for kind, payload in shim.frames(sock):
        assert kind not in (shim.EXIT, shim.ERROR, shim.STDERR), (kind, payload, seen)
        if kind == shim.STDOUT:
            seen += payload
            if re.search(pattern, seen):
                return bytes(seen)
    raise AssertionError("unreachable")


def test_it_is_the_controlling_terminal(server: Server) -> None:
    script = (
        "tty; for i in 0 1 2; do test -t $i || echo no $i; done; : >/dev/tty && echo has;"
        " cut -d' ' -f1,5,6,8 /proc/$$/stat; echo err >&2; stat -c '%u %t' $(tty)"
    )
    result = server.sh(script, pty=True, uid=1234, gid=1234)
    lines = bytes(result.stdout).decode().split("\r\n")
    assert re.fullmatch(r"/dev/pts/\d+", lines[0]), lines
    assert lines[1] == "has" and lines[3] == "err" and result.stderr == b""
    # Leader of its session, in the foreground.
    assert lines[2] == " ".join([str(result.pid)] * 4)
    assert lines[4].split()[0] == "1234"
    assert code(result) == 0 and result.drained


def test_size_and_resize(server: Server) -> None:
    assert server.sh("stty size", pty=True).stdout == b"24 80\r\n"
    assert server.sh("stty size", pty=(132, 50)).stdout == b"50 132\r\n"
    script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done"
    with server.start(["sh", "-c", script], pty=(1, 65535)) as sock:
        read_to(sock, b"ready")
        sock.sendall(shim.resize(100, 30))
        read_to(sock, b"30 100\r\n")
        sock.sendall(shim.resize(0, 30))
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EPROTO)


def test_a_resize_needs_a_terminal_and_a_terminal_needs_stdin(server: Server) -> None:
    with server.start(["sleep", "1000"]) as sock:
        sock.sendall(shim.resize(80, 24))
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EPROTO)
    payload = bytearray(shim.exec_payload(["true"], pty=True))
    payload[0] &= ~shim.EXEC_STDIN
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.EXEC, bytes(payload)))
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EINVAL)


def test_line_editing_echo_and_control_characters(server: Server) -> None:
    with server.start(["cat"], pty=True) as sock:
        type_in(sock, b"abX\x7fc\n")
        # Echoed, then printed.
        assert read_to(sock, b"abc\r\n$").endswith(b"abc\r\n")
        # UTF-8: one key erases one character.
        type_in(sock, "ä\x7fö\n".encode())
        read_to(sock, "\r\nö\r\n".encode())
        type_in(sock, b"\x03")
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGINT)


def test_end_of_file(server: Server) -> None:
    for text, extra in ((b"", b""), (b"line\n", b""), (b"no newline", b"no newline")):
        with server.start(["cat"], pty=True) as sock:
            if text:
                type_in(sock, text)
            sock.sendall(shim.frame(shim.STDIN_EOF))
            result = shim.collect(sock)
        assert code(result) == 0
        want = text.replace(b"\n", b"\r\n") + (extra or text.replace(b"\n", b"\r\n"))
        # A terminal shows ^D and takes it back.
        assert re.sub(rb"\^D\x08\x08", b"", bytes(result.stdout)) == want
    # On one stream nothing follows it.
    with server.start(["sleep", "1000"], pty=True) as sock:
        sock.sendall(shim.frame(shim.STDIN_EOF))
        type_in(sock, b"x")
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EPROTO)


def test_output_is_complete(server: Server) -> None:
    for i in range(30):
        result = server.sh(f"seq 1 {i * 40}", pty=True)
        want = "".join(f"{n}\r\n" for n in range(1, i * 40 + 1)).encode()
        assert result.stdout == want and code(result) == 0 and result.drained
    result = server.sh("head -c 3000000 /dev/zero; exit 3", pty=True)
    assert len(result.stdout) == 3000000 and code(result) == 3 and result.drained


def test_slow_reader(server: Server) -> None:
    with server.start(["head", "-c", "2000000", "/dev/zero"], pty=True, drain_ms=50) as sock:
        time.sleep(0.3)
        result = shim.collect(sock)
    assert len(result.stdout) == 2000000 and code(result) == 0


def test_big_input_in_raw_mode(server: Server) -> None:
    script = "stty raw -echo; echo ready; head -c 1000000 | md5sum"
    with server.start(["sh", "-c", script], pty=True) as sock:
        read_to(sock, b"ready\n")
        left, window = 1000000, shim.STDIN_WINDOW
        while left:
            n = min(left, 65536)
            while window < n:
                kind, payload = next(shim.frames(sock))
                assert kind == shim.STDIN_CREDIT
                window += struct.unpack("<I", payload)[0]
            type_in(sock, b"x" * n)
            left -= n
            window -= n
        result = shim.collect(sock)
    assert hashlib.md5(b"x" * 1000000).hexdigest().encode() in bytes(result.stdout)


def test_what_is_left_behind_is_hung_up_or_killed(server: Server) -> None:
    # In the background, ignoring the hang-up: it does not hold up the exit for ever.
    script = "trap '' HUP; sleep 1000 & echo $!; exit 5"
    result = server.sh(script, pty=True, drain_ms=200)
    assert code(result) == 5
    pid = int(result.stdout.split()[0])
    assert eventually(lambda: not alive(pid))
    # One that floods the terminal.
    result = server.sh("trap '' HUP TTOU; yes & sleep 0.05; exit 6", pty=True, drain_ms=100)
    assert code(result) == 6


def test_a_shell_with_job_control(server: Server) -> None:
    env = {"PS1": "$ ", "PATH": os.environ["PATH"], "TERM": "dumb"}
    argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
    with server.start(argv, pty=True, env=env) as sock:
        assert b"no job control" not in read_to(sock, rb"\$ $")
        # Or a control character throws output away that came a moment before.
        type_in(sock, b"stty noflsh\n")
        read_to(sock, rb"noflsh\r\n(?s:.*)\$ $")
        job = b"trap 'echo ba''ck' CONT; echo fore''ground; while :; do read x; done"
        type_in(sock, b'sh -c "' + job + b'"\n')
        read_to(sock, b"\nforeground\r\n")
        type_in(sock, b"\x1a")
        read_to(sock, rb"(?s)Stopped.*\$ $")
        type_in(sock, b"fg\n")
        read_to(sock, b"\nback\r\n")
        type_in(sock, b"\x03")
        read_to(sock, rb"\$ $")
        type_in(sock, b"exit 9\n")
        result = shim.collect(sock)
    assert code(result) == 9


def test_a_client_that_vanishes_takes_it_along(server: Server) -> None:
    with server.start(["sleep", "1000"], pty=True) as sock:
        kind, payload = next(shim.frames(sock))
        assert kind == shim.STARTED
    pid = struct.unpack("<I", payload)[0]
    assert eventually(lambda: not alive(pid))


def test_a_kept_terminal_is_taken_up_again(server: Server) -> None:
    id = os.urandom(16)
    env = {"PS1": "> ", "PATH": os.environ["PATH"], "TERM": "dumb"}
    argv = ["sh"]
    with server.start(argv, pty=True, keep=id, env=env) as sock:
        read_to(sock, b"> ")
        type_in(sock, b"a=kept\n")
        read_to(sock, b"> $")
    with server.connect() as sock:
        sock.sendall(shim.attach(id))
        sock.sendall(shim.resize(99, 33))
        # The whole of it is replayed; and it can be typed at.
        kinds = [next(shim.frames(sock))[0] for _ in range(2)]
        assert kinds == [shim.ATTACHED, shim.STDIN_CREDIT]
        read_to(sock, b"a=kept\r\n> ")
        type_in(sock, b"echo $a; stty size\n")
        read_to(sock, b"kept\r\n33 99\r\n")
        sock.sendall(shim.frame(shim.STDIN_EOF))
        result = shim.collect(sock)
    assert code(result) == 0
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.FORGET, id))
        assert shim.answer(sock) is None


def test_end_of_file_and_a_new_stream(server: Server) -> None:
    id = os.urandom(16)
    script = "cat; echo again; cat; echo end"
    with server.start(["sh", "-c", script], pty=True, keep=id) as sock:
        sock.sendall(shim.frame(shim.STDIN_EOF))
        read_to(sock, b"again")
    with server.connect() as sock:
        sock.sendall(shim.attach(id, shim.END) + shim.frame(shim.STDIN, b"more\n"))
        read_to(sock, b"more\r\nmore\r\n")
        sock.sendall(shim.frame(shim.STDIN_EOF))
        result = shim.collect(sock)
    assert b"end" in bytes(result.stdout) and code(result) == 0


def test_a_hundred_at_once_and_nothing_is_left(server: Server) -> None:
    fds = server.fds()
    socks = [server.start(["sh", "-c", "read x; echo got $x"], pty=True) for _ in range(100)]
    for i, sock in enumerate(socks):
        type_in(sock, b"%d\n" % i)
    for i, sock in enumerate(socks):
        result = shim.collect(sock)
        assert result.stdout == b"%d\r\ngot %d\r\n" % (i, i)
        sock.close()
    assert eventually(lambda: server.fds() <= fds + 1)
    cpu = cpu_ticks(server.proc.pid)
    with server.start(["sh", "-c", "exec <&- >&- 2>&-; sleep 1000"], pty=True):
        time.sleep(0.4)
        assert cpu_ticks(server.proc.pid) - cpu <= 3, "the shim spins"


@pytest.mark.parametrize("combined", [False, True])
def test_uid_that_is_unknown(server: Server, combined: bool) -> None:
    result = server.sh("id -u; echo x >$(tty)", pty=True, uid=4321, gid=4321, combined=combined)
    assert result.stdout == b"4321\r\nx\r\n" and code(result) == 0
