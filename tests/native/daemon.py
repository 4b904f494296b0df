# SPDX-License-Identifier: Apache-2.0
"""A thawd for tests: state folder and socket of its own, no jail, stand-ins for its machines
(fake_machine.py), real shims behind them.

    def test_x(thawd: Thawd) -> None:          # from daemon import thawd  (a fixture)
        thawd.api.call("PUT", "/v1/sandboxes/a", {})

Templates: `debian`, a small snapshot that the stand-in takes; recipes and a guest folder are there,
so that templates of other sizes can be built.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import fake_snapshot
from api_client import ApiClient

TOP = Path(__file__).resolve().parent.parent.parent
THAWD = Path(os.environ.get("THAWD_BIN", TOP / "build/release/thawd"))
THAW = Path(os.environ.get("THAW_BIN", TOP / "build/release/thaw"))
MACHINE = TOP / "tests/native/fake_machine.py"
WAIT_S = 60

needs_thawd = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not THAWD.exists(), reason=f"{THAWD} is not built"),
]


def eventually(what: Callable[[], Any], wait_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + wait_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def remove_cgroup(folder: Path) -> bool:
    try:
        for inner in folder.iterdir():
            if inner.is_dir() and not remove_cgroup(inner):
                return False
        folder.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


class Thawd:
    """start() it; kill9() and start() again as often as you like; close() ends all machines."""

    def __init__(self, folder: Path, *config: str, **env: str) -> None:
        self.folder = folder
        self.state = folder / "s"
        self.socket = str(folder / "thaw.sock")
        self.misbehave = folder / "fake"  # a word of fake_machine.py's for machines to come
        self.log = folder / "thawd.log"
        self.config = folder / "thaw.conf"
        self.lines = list(config)
        self.process: subprocess.Popen[bytes] | None = None
        self.api = ApiClient(self.socket)
        for name in ("templates/debian", "scratch", "logs", "images"):
            (self.state / name).mkdir(parents=True)
        fake_snapshot.write(self.state / "templates/debian", "debian")
        self.guest = folder / "guest"
        self.guest.mkdir()
        for name in ("vmlinux", "initramfs.cpio", "root.erofs"):
            (self.guest / name).write_bytes(name.encode())
        guest = {"kernel": "6.12.1-test", "image": "debian", "digest": "0123456789abcdef"}
        (self.guest / "guest.json").write_text(json.dumps(guest))
        self.env = {
            "PATH": os.environ["PATH"],
            "THAW_STATE": str(self.state),
            "THAW_VMM": str(MACHINE),
            "THAW_GUEST_DIR": str(self.guest),
            "THAW_FAKE_FILE": str(self.misbehave),
            **{name: text for name, text in os.environ.items() if name.endswith("SAN_OPTIONS")},
            **env,
        }

    def start(self, *config: str) -> Thawd:
        """Until it says that it is ready. CONFIG: lines of thaw.conf, kept for later starts."""
        self.lines += config
        head = [f"socket = {self.socket}", "jail = off"]
        self.config.write_text("\n".join([*head, *self.lines, ""]))
        with contextlib.suppress(FileNotFoundError):
            Path(self.socket).unlink()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(THAWD), "--config", str(self.config)],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        assert eventually(lambda: self.answers() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def answers(self) -> bool:
        try:
            return self.api.call("GET", "/healthz", check=False).status == 200
        except OSError:
            return False

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def stop(self, signo: int = signal.SIGTERM) -> int:
        """Return: its exit status."""
        assert self.process
        self.process.send_signal(signo)
        status = self.process.wait(WAIT_S)
        self.process = None
        return status

    def kill9(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self) -> Thawd:
        self.stop()
        return self.start()

    # The API, briefly.

    def create(self, name: str, **spec: object) -> dict[str, Any]:
        answer = self.api.call("PUT", f"/v1/sandboxes/{name}", spec)
        assert answer.status in (200, 201), (answer.status, answer.body)
        return answer.json

    def inspect(self, name: str) -> dict[str, Any]:
        answer = self.api.call("GET", f"/v1/sandboxes/{name}")
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json

    def state_of(self, name: str) -> str:
        return self.inspect(name)["state"]

    # What is behind it.

    def machine_ids(self) -> list[str]:
        """Folders of machines, whoever owns them."""
        run = self.state / "run"
        return sorted(path.name for path in run.glob("[0-9a-f]*")) if run.exists() else []

    def machine_pid(self, ident: str) -> int:
        return int((self.state / "run" / ident / "pid").read_text().split()[0])

    def kill_machine(self, ident: str) -> None:
        pid = self.machine_pid(ident)
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not alive(pid))

    def machines(self) -> list[int]:
        """Processes of stand-ins that belong to this state folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes()
                if str(MACHINE).encode() in words and str(self.state).encode() in words:
                    found.append(int(path.name))
        return sorted(pid for pid in found if alive(pid))

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.stop(signal.SIGKILL)
        for pid in self.machines():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not self.machines())
        for root in Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"):
            for folder in root.glob(f"{self.folder.name}-*"):
                assert eventually(lambda folder=folder: remove_cgroup(folder)), folder


def fresh_thawd(*config: str, **env: str) -> Thawd:
    """Not started. Its folder is short, as paths of sockets must be; remove_thawd() it."""
    return Thawd(Path(tempfile.mkdtemp(prefix="thawd.", dir="/tmp")), *config, **env)


def remove_thawd(thawd: Thawd) -> None:
    thawd.close()
    shutil.rmtree(thawd.folder, ignore_errors=True)


@pytest.fixture
def thawd(request: pytest.FixtureRequest) -> Iterator[Thawd]:
    """Started; parametrize it indirectly with a list of lines of thaw.conf."""
    made = fresh_thawd(*getattr(request, "param", []))
    try:
        yield made.start()
        if getattr(request.node, "rep_failed", False):
            print(made.log.read_text(), file=sys.stderr)
    finally:
        remove_thawd(made)


def readable(fd: int, timeout_s: float = WAIT_S) -> bool:
    return bool(select.select([fd], [], [], timeout_s)[0])
