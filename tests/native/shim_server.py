# SPDX-License-Identifier: Apache-2.0
"""A thaw-shim that serves a Unix socket: what the tests of the shim share."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))

import shim  # noqa: E402

SHIM = Path(os.environ.get("THAW_SHIM") or TOP / "build/release/thaw-shim")
WAIT_S = 30
REQUEST, SETUP, CWD, EXEC = range(4)

needs_shim = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built"),
]


def cgroup2_root() -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def eventually(what: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Server:
    """One thaw-shim that listens."""

    def __init__(self, folder: Path, cgroup: Path | None, *options: str) -> None:
        self.path = folder / "shim.sock"
        self.cgroup = cgroup
        argv = [str(SHIM), "--listen-unix", str(self.path)]
        if cgroup:
            argv += ["--cgroup", str(cgroup)]
        argv += options
        self.log = (folder / "log").open("w+b")
        self.proc = subprocess.Popen(argv, stderr=self.log)
        assert eventually(self.path.exists)
        self.connect().close()

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                sock.connect(str(self.path))
                return sock
            except (ConnectionRefusedError, BlockingIOError):
                # Not listening yet, or the queue is full.
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def start(self, argv: list[str | bytes], **kw: object) -> socket.socket:
        sock = self.connect()
        payload = shim.exec_payload(argv, **kw)  # type: ignore[arg-type]
        sock.sendall(shim.frame(shim.EXEC, payload))
        return sock

    def run(self, *argv: str | bytes, stdin: bytes | None = None, **kw: object) -> shim.Result:
        with self.start(list(argv), stdin=stdin is not None, **kw) as sock:
            if stdin is not None:
                for at in range(0, len(stdin), 65536):
                    sock.sendall(shim.frame(shim.STDIN, stdin[at : at + 65536]))
                sock.sendall(shim.frame(shim.STDIN_EOF))
            return shim.collect(sock)

    def sh(self, script: str, **kw: object) -> shim.Result:
        return self.run("sh", "-c", script, **kw)  # type: ignore[arg-type]

    def fds(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.proc.pid}/fd").iterdir())

    def mappings(self) -> int:
        return len(Path(f"/proc/{self.proc.pid}/maps").read_text().splitlines())

    def children(self) -> list[str]:
        path = Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children")
        return path.read_text().split()

    def rss_kib(self) -> int:
        text = Path(f"/proc/{self.proc.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+)", text)
        assert match
        return int(match[1])

    def stop(self) -> None:
        self.proc.terminate()
        status = self.proc.wait(timeout=WAIT_S)
        self.log.seek(0)
        text = self.log.read().decode(errors="replace")
        self.log.close()
        assert status == 0, f"the shim ended with {status}: {text}"
        assert "ERROR" not in text and "runtime error" not in text, text


@pytest.fixture(params=["groups", "cgroup"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    cgroup = None
    if request.param == "cgroup":
        root = cgroup2_root()
        if root is None:
            pytest.skip("no cgroup v2 here")
        cgroup = root / f"thaw-test-{os.getpid()}"
        cgroup.mkdir()
    server = Server(tmp_path, cgroup)
    try:
        yield server
    finally:
        server.stop()
        if cgroup:
            left = [p.name for p in cgroup.iterdir() if p.is_dir()]
            cgroup.rmdir()
            assert not left


def code(result: shim.Result) -> int:
    assert result.error is None, result.error
    assert result.kind == shim.EXIT_CODE, result
    assert result.value is not None
    return result.value


def read_until(sock: socket.socket, marker: bytes) -> None:
    seen = bytearray()
    for kind, payload in shim.frames(sock):
        if kind == shim.STDOUT:
            seen += payload
        if marker in seen:
            return


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
