# SPDX-License-Identifier: Apache-2.0
"""Kept commands, terminals and ports of a real guest; what a hog can't do to it."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import shim
from conftest import STATE, Sandbox, Thaw


def vsock(box: str) -> Path:
    return STATE / "run" / box / "vsock"


@pytest.fixture
def box(thaw: Thaw) -> Iterator[str]:
    proc = thaw("run", "-d", thaw.template)
    assert proc.returncode == 0, proc.stderr.decode()
    yield proc.stdout.decode().strip()
    for left in json.loads(thaw("ps", "-o", "json").stdout):
        assert thaw("rm", "--force", left["id"]).returncode == 0


def entry(path: Path, id: bytes) -> shim.Entry:
    with shim.connect(path) as sock:
        return shim.entries(sock)[id]


def processes(path: Path) -> int:
    with shim.connect(path) as sock:
        return shim.usage(sock).processes


def ping(path: Path) -> None:
    with shim.connect(path) as sock:
        sock.sendall(shim.frame(shim.PING, b"there?"))
        assert next(shim.frames(sock)) == (shim.PONG, b"there?")


def test_a_kept_command_goes_on_in_a_clone(thaw: Thaw, box: str) -> None:
    id, parent = os.urandom(16), vsock(box)
    script = "echo one; echo two >&2; read x; echo got $x; tty; stat -c '%G %a' $(tty); exit 7"
    with shim.connect(parent) as sock:
        payload = shim.exec_payload(["sh", "-c", script], keep=id, pty=(91, 17), uid=1234, gid=5678)
        sock.sendall(shim.frame(shim.EXEC, payload))
        seen = b""
        for kind, data in shim.frames(sock):
            seen += data if kind == shim.STDOUT else b""
            if seen.endswith(b"two\r\n"):
                break
        proc = thaw("fork", box, "-o", "json")
        assert proc.returncode == 0, proc.stderr.decode()
        clone = vsock(json.loads(proc.stdout)["clones"][0]["id"])
        # The parent's stream never noticed.
        sock.sendall(shim.frame(shim.STDIN, b"parent\n"))
        result = shim.collect(sock)
        assert b"got parent" in bytes(result.stdout) and result.value == 7
    assert entry(parent, id).state == shim.ENDED
    left = entry(clone, id)
    assert (left.state, left.attached, left.end) == (shim.RUNNING, 0, len(seen))
    with shim.connect(clone) as sock:
        sock.sendall(shim.attach(id) + shim.frame(shim.STDIN, b"clone\n"))
        result = shim.collect(sock)
    lines = bytes(result.stdout).decode().split("\r\n")
    assert lines == ["one", "two", "clone", "got clone", "/dev/pts/0", "tty 620", ""]
    assert (result.kind, result.value, result.flags) == (shim.EXIT_CODE, 7, shim.DRAINED)
    for path in (parent, clone):
        with shim.connect(path) as sock:
            sock.sendall(shim.frame(shim.FORGET, id))
            assert shim.answer(sock) is None


def test_ports_and_usage(sandbox: Sandbox) -> None:
    script = (
        "import socket\n"
        "for family, host in ((2, '127.0.0.1'), (10, '::1')):\n"
        "    s = socket.socket(family)\n"
        "    s.bind((host, 8000 if family == 2 else 8001))\n"
        "    s.listen()\n"
        "    print('ready', flush=True)\n"
        "    c, _ = s.accept()\n"
        "    while data := c.recv(65536):\n"
        "        c.sendall(data[::-1])\n"
        "    c.close()\n"
    )
    with shim.connect(sandbox.vsock) as server:
        payload = shim.exec_payload(["python3", "-c", script])
        server.sendall(shim.frame(shim.EXEC, payload))
        frames = shim.frames(server)
        for port in (8000, 8001):
            while next(frames)[0] != shim.STDOUT:
                pass
            with shim.connect(sandbox.vsock) as sock:
                sock.sendall(shim.frame(shim.CONNECT, struct.pack("<II", port, 0)))
                assert shim.answer(sock) is None
                sock.sendall(b"abc")
                assert shim.read_exact(sock, 3) == b"cba"
                sock.shutdown(1)
                assert sock.recv(1) == b""
        with shim.connect(sandbox.vsock) as sock:
            sock.sendall(shim.frame(shim.CONNECT, struct.pack("<II", 8000, 0)))
            error = shim.answer(sock)
            assert error is not None and error[1] == errno.ECONNREFUSED
        assert shim.collect(server).value == 0
    with shim.connect(sandbox.vsock) as sock:
        usage = shim.usage(sock)
    assert usage.cpu_usage_us > 0 and usage.disk_free_bytes > 0 and usage.processes == 0
    assert usage.memory_available_bytes < usage.memory_total_bytes


def test_limits_of_a_command(sandbox: Sandbox) -> None:
    script = "import os\nfor i in range(100):\n if not os.fork(): os.read(0, 1)\n"
    result = sandbox.exec("python3", "-c", script, pids_max=20)
    assert result.value == 1 and b"BlockingIOError" in bytes(result.stderr)
    result = sandbox.exec("sh", "-c", "ulimit -n; ulimit -Hn", nofile=77)
    assert result.stdout == b"77\n77\n"
    result = sandbox.exec("sh", "-c", "ulimit -n; ulimit -Hn")
    assert result.stdout == b"1024\n524288\n"
    result = sandbox.exec("sh", "-c", "echo here; sleep 1000 & setsid sleep 1000", timeout_ms=1000)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    assert result.stdout == b"here\n" and result.flags == shim.DRAINED | shim.TIMED_OUT


# A byte in each page of more memory than there is.
BOMB = """
import mmap
size = 1 << 40
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for at in range(0, size, 4096):
    memory[at] = 1
"""

# Every one of them for as long as it is let.
HOGS = {
    # Of a shell that stays: only what is too large is killed.
    "memory": ["sh", "-c", 'while :; do python3 -c "$0"; echo again; done', BOMB],
    "forks": ["sh", "-c", "f() { f & f & wait; }; f 2>/dev/null"],
    "output": ["sh", "-c", "yes & yes >&2 & yes & wait"],
}


@pytest.mark.parametrize("hog", HOGS)
def test_a_hog_leaves_the_shim_responsive(sandbox: Sandbox, hog: str) -> None:
    id = os.urandom(16)
    with shim.connect(sandbox.vsock) as sock:
        sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(HOGS[hog], keep=id)))
        assert next(shim.frames(sock))[0] == shim.STARTED
        if hog == "memory":
            # The kernel has killed it once, and the shell goes on.
            kind, data = next(shim.frames(sock))
            while b"again" not in data:
                kind, data = next(shim.frames(sock))
        elif hog == "output":
            while entry(sandbox.vsock, id).end < shim.RING_UNACKED_MAX:
                time.sleep(0.1)
        else:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                ping(sandbox.vsock)
        for _ in range(5):
            ping(sandbox.vsock)
        # There is room for others, too.
        assert sandbox.exec("echo", "alive").stdout == b"alive\n"
        assert entry(sandbox.vsock, id).state == shim.RUNNING
    with shim.connect(sandbox.vsock) as sock:
        sock.sendall(shim.attach(id, shim.END) + shim.frame(shim.KILL))
        for kind, data in shim.frames(sock):
            if kind == shim.EXIT:
                kind, value, flags = struct.unpack("<III", data)
                break
            assert kind != shim.ERROR, data
    assert (kind, value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    if hog == "memory":
        assert flags & shim.OOM
    with shim.connect(sandbox.vsock) as sock:
        sock.sendall(shim.frame(shim.FORGET, id))
        assert shim.answer(sock) is None
    deadline = time.monotonic() + 60
    while processes(sandbox.vsock):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Its own, and perhaps the next one's.
    script = "ls -d /sys/fs/cgroup/exec/*/ | wc -l"
    assert sandbox.exec("sh", "-c", script).stdout in (b"1\n", b"2\n")
