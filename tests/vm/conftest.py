# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run the product: templates, `thaw run`, long-lived sandboxes.

They run where guests can run: `tests/host/run -- python3 -m pytest tests/vm`.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import journal
import pytest
import shim
from journal import pytest_runtest_logreport, pytest_runtest_logstart  # noqa: F401
from localbin import local_bin

TOP = Path(__file__).resolve().parent.parent.parent
BIN = local_bin()
STATE = Path(os.environ.get("THAW_STATE", "/var/lib/thaw"))
TIMEOUT_S = 300
CASE_LIMIT_S = 600


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(CASE_LIMIT_S))
    journal.leave_out_ended(config, items)


@dataclass
class Thaw:
    """The command line, and what a test needs around it."""

    template: str

    def __call__(
        self, *args: str, stdin: bytes | None = None, timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(BIN / "thaw"), *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """`thaw run TEMPLATE args...`; options come before "--"."""
        return self("run", self.template, *args, stdin=stdin)

    def sh(self, script: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        return self.run(*options, "--", "sh", "-c", script)


def guest_digest() -> str:
    """What a template depends on; another digest means another build."""
    digest = hashlib.sha256()
    for path in (
        TOP / "build/guest/guest.json",
        TOP / "build/guest/initramfs.cpio",
        BIN / "thaw-vmm",
        BIN / "thaw",
        TOP / "snapshots/recipes/debian",
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build_template(name: str, *args: str) -> None:
    """Build @name unless one of this digest and these arguments stands there already."""
    stamp = STATE / f"test-template-{name}"
    want = guest_digest() + " " + " ".join(args)
    have = stamp.read_text() if stamp.exists() else ""
    if have == want and (STATE / "templates" / name / "manifest.json").exists():
        return
    proc = subprocess.run(
        # One clone for each command is enough here: its own tests record more (test_hot.py).
        [str(BIN / "thaw"), "template", "build", name, "--replace", "--hot-runs", "1", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert proc.returncode == 0, proc.stderr
    stamp.write_text(want)


@pytest.fixture(scope="session")
def thaw() -> Thaw:
    """The CLI with the standard template, built when missing or stale."""
    build_template("t-debian", "--recipe", str(TOP / "snapshots/recipes/debian"))
    return Thaw("t-debian")


@pytest.fixture(scope="session")
def template(thaw: Thaw) -> Path:
    return STATE / "templates" / thaw.template


class Sandbox:
    """A restored VM that stays: `thaw-vmm restore --vsock PATH`, no daemon."""

    def __init__(self, template: Path, folder: Path, *args: str) -> None:
        self.vsock = folder / "vsock"
        self.stderr = (folder / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [
                *(str(BIN / "thaw-vmm"), "restore", str(template), "--disk-dir", str(STATE)),
                *("--vsock", str(self.vsock), *args),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.stderr,
            stderr=self.stderr,
        )
        deadline = time.monotonic() + 60
        while not self.vsock.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def log(self) -> str:
        return Path(self.stderr.name).read_text(errors="replace")

    def exec(self, *argv: str | bytes, stdin: bytes | None = None, **kw: object) -> shim.Result:
        return shim.run(self.vsock, argv, stdin=stdin, **kw)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.stderr.close()
        return code


@pytest.fixture
def sandbox(template: Path, tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(template, tmp_path)
    yield box
    box.stop()


@pytest.fixture
def sandbox_of(template: Path, tmp_path: Path) -> Iterator[Callable[..., Sandbox]]:
    """Make sandboxes with options of one's own; all are stopped at the end."""
    boxes: list[Sandbox] = []

    def make(*args: str, template: Path = template) -> Sandbox:
        folder = tmp_path / f"box-{len(boxes)}"
        folder.mkdir()
        boxes.append(Sandbox(template, folder, *args))
        return boxes[-1]

    yield make
    for box in boxes:
        box.stop()
