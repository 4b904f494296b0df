# SPDX-License-Identifier: Apache-2.0
"""Programs that the lab does not bring: an environment variable names them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from lab.arms import NotRun


def named_by(variable: str) -> Path:
    """The executable that @variable names; NotRun says what is missing."""
    value = os.environ.get(variable, "")
    if not value:
        raise NotRun(f"{variable} is not set: it names the binary")
    path = Path(value)
    if not path.is_file():
        raise NotRun(f"{variable}={value}: no such file (the test host sees only the checkout)")
    if not os.access(path, os.X_OK):
        raise NotRun(f"{variable}={value}: not executable")
    return path.absolute()


def version_of(path: Path) -> tuple[int, int]:
    """Major and minor of `PATH --version`; NotRun when it does not say."""
    try:
        said = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotRun(f"{path} --version: {error}") from error
    found = re.search(r"\bv?(\d+)\.(\d+)", said)
    if not found:
        raise NotRun(f"{path} --version says no version: {said.strip()[:80]!r}")
    return int(found[1]), int(found[2])
