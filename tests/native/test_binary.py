# SPDX-License-Identifier: Apache-2.0
"""What is in thaw-vmm: every sandbox has it mapped, and whoever breaks out of a guest finds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

VMM = Path(__file__).resolve().parent.parent.parent / "build/release/thaw-vmm"

pytestmark = pytest.mark.skipif(not VMM.exists(), reason=f"{VMM} is not built")


def test_no_compressor_is_linked_in() -> None:
    names = subprocess.run(["nm", VMM], check=True, capture_output=True, text=True).stdout
    assert "ZSTD_decompressDCtx" in names
    assert "ZSTD_compress" not in names
