# SPDX-License-Identifier: Apache-2.0
"""The soak in small: see soak.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import soak
from conftest import Sandbox, Thaw


def test_300_restores(thaw: Thaw) -> None:
    """No failure, no two alike, no growth. The strategies that read all memory are left to `make
    soak` in number, not in kind: they take ten times as long as the others here."""
    quick = [*[soak.POOL] * 12, *["ws"] * 3, *["mmap"] * 3, "uffd"]
    soak.restores(thaw, 280, quick, seed=1)
    soak.restores(thaw, 1, ["copy", "uring", "memfd"], seed=2)


def test_clones_are_distinct(sandbox_of: Callable[..., Sandbox]) -> None:
    """test_300_restores compares more of them; here they are asked more."""
    soak.distinct(sandbox_of, 10)


@pytest.mark.parametrize("diff", [False, True], ids=["whole", "diff"])
def test_tenth_generation(thaw: Thaw, sandbox_of: Callable[..., Sandbox], diff: bool) -> None:
    soak.generations(thaw, sandbox_of, 10, diff)
