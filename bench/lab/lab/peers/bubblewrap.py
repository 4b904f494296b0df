# SPDX-License-Identifier: Apache-2.0
"""bubblewrap: a container of namespaces over the host's own root, what people use for a command.

What is timed: from the start of bwrap to its end (see container.py).

run         `bwrap --unshare-all` with the host's root read-only and nothing else: the least that
            /bin/true needs
run-output  the sandbox one would really use (/proc, /dev, /tmp of its own), for a command whose
            output is read
"""

from __future__ import annotations

import shutil

from lab.arms import Arm, Context, NotRun
from lab.peers.container import ECHO, TRUE, Container

PEER = "bubblewrap"
LEAST = ["bwrap", "--unshare-all", "--ro-bind", "/", "/"]
USUAL = [*LEAST, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent"]


def require() -> None:
    if not shutil.which("bwrap"):
        raise NotRun("bwrap is not installed (Debian package bubblewrap)")


class Bubblewrap:
    name = PEER

    def arms(self, ctx: Context) -> list[Arm]:
        return [
            Container(PEER, "run", TRUE, lambda command, _: [*LEAST, *command], require),
            Container(PEER, "run-output", ECHO, lambda command, _: [*USUAL, *command], require),
        ]


ADAPTER = Bubblewrap()
