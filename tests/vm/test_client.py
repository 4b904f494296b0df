# SPDX-License-Identifier: Apache-2.0
"""The Python client's tour against thawd, its jail and a real guest: make a sandbox, write a file
and read it back, use a terminal, fork, kill.

The file is smaller here than the 1 GiB of the native test: the emulated host moves a few MiB a
second. THAW_TOUR_MIB sets its size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, TOP, Thaw

WAIT_S = 120
LIMIT_S = 500
EXAMPLES = TOP / "clients/python/examples"


@pytest.fixture(scope="module")
def env(thaw: Thaw) -> Iterator[dict[str, str]]:
    """A thawd of its own: the environment for clients of it."""
    with tempfile.TemporaryDirectory(prefix="thawd.", dir="/tmp") as name:
        folder = Path(name)
        config = folder / "thaw.conf"
        config.write_text(
            f"socket = {folder}/sock\nstate_folder = {STATE}\ndefault_template = {thaw.template}\n"
        )
        with (folder / "log").open("w+b") as log:
            proc = subprocess.Popen(
                [TOP / "build/release/thawd", "--config", config],
                env={**os.environ, "THAW_VMM": str(BIN / "thaw-vmm")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            deadline = time.monotonic() + WAIT_S
            while not (folder / "sock").exists():
                assert proc.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
            path = str(TOP / "clients/python/src")
            yield {**os.environ, "THAW_SOCKET": f"{folder}/sock", "PYTHONPATH": path}
            proc.terminate()
            proc.wait(WAIT_S)


def run_example(env: dict[str, str], *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, *argv],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tour(env: dict[str, str]) -> None:
    size_mib = os.environ.get("THAW_TOUR_MIB", "48")
    out = run_example(env, str(EXAMPLES / "tour.py"), "--size-mib", size_mib)
    assert "hello from Linux" in out
    assert f"wrote {int(size_mib) << 20} bytes" in out
    assert out.endswith("killed it\nall is well\n"), out


def test_many(env: dict[str, str]) -> None:
    assert run_example(env, str(EXAMPLES / "many.py"), "--count", "3") == "0 1 4\n"
