# SPDX-License-Identifier: Apache-2.0
"""The binaries under test on a file system of this machine's own.

In the emulated test host the checkout is shared without a cache, so that a change is seen at
once; starting a program from it costs several times what the program does. A copy in /run, named
by its digest, is started instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = TOP / "build/release"
NAMES = ("thaw", "thaw-vmm", "thawd")


def local_bin() -> Path:
    """Folder of the copies; made when missing, older ones are left to whoever still uses them."""
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update((BUILD / name).read_bytes())
    folder = Path("/run") / f"thaw-bin-{digest.hexdigest()[:16]}"
    os.environ.setdefault("THAW_GUEST_DIR", str(TOP / "build/guest"))
    if not folder.is_dir():
        temporary = folder.with_name(f"{folder.name}.{os.getpid()}")
        temporary.mkdir()
        for name in NAMES:
            shutil.copy2(BUILD / name, temporary / name)
        try:
            temporary.rename(folder)
        except OSError:  # somebody else was faster
            shutil.rmtree(temporary)
    return folder
