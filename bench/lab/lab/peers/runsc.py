# SPDX-License-Identifier: Apache-2.0
"""gVisor: a container whose system calls a kernel in user space serves.

What is timed: from the start of runsc to its end (see container.py).

run      `runsc run` of the least OCI bundle over the host's root, on the default platform, as a
         container engine would start it
do       `runsc do`: a command in a copy-on-write view of the host
run-kvm  as run, on the KVM platform; not every machine's KVM can carry it

All without a network, as the other peers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lab.arms import Arm, Context, NotRun
from lab.peers.container import TRUE, Container

PEER = "runsc"


def program() -> str:
    """RUNSC names one that is not on PATH."""
    return os.environ.get("RUNSC") or "runsc"


def state(name: str) -> Path:
    """Where runsc keeps what it knows of its containers: on a tmpfs, as its default is."""
    return Path("/run") / f"thaw-lab-runsc-{os.getpid()}-{name}"


def require() -> None:
    if not shutil.which(program()):
        raise NotRun(f"{program()} is not installed (Debian package runsc; RUNSC names another)")


def bundle(command: list[str]) -> dict[str, object]:
    """config.json of the OCI run-time specification."""
    return {
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": command,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
        },
        "root": {"path": "/", "readonly": True},
        "hostname": "lab",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")]
        },
    }


class Runsc:
    name = PEER

    @staticmethod
    def _run(ctx: Context, name: str, *options: str) -> Callable[[list[str], int], list[str]]:
        folder = ctx.work / f"peer-runsc-{name}"

        def argv(command: list[str], number: int) -> list[str]:
            if not folder.exists():  # the first time, in setup(): no sample makes it
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps(bundle(command)))
            start = [program(), "--root", str(state(name)), "--network=none", *options]
            return [*start, "run", "--bundle", str(folder), f"lab-{os.getpid()}-{name}-{number}"]

        return argv

    def arms(self, ctx: Context) -> list[Arm]:
        def do(command: list[str], number: int) -> list[str]:
            return [program(), "--root", str(state("do")), "--network=none", "do", *command]

        kinds = {
            "run": self._run(ctx, "run"),
            "do": do,
            "run-kvm": self._run(ctx, "run-kvm", "--platform=kvm"),
        }
        arms: list[Arm] = []
        for name, argv in kinds.items():
            leftovers = [ctx.work / f"peer-runsc-{name}", state(name)]

            def cleanup(leftovers: list[Path] = leftovers) -> None:
                for folder in leftovers:
                    shutil.rmtree(folder, ignore_errors=True)

            arms.append(Container(PEER, name, TRUE, argv, require, cleanup))
        return arms


ADAPTER = Runsc()
