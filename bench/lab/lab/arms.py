# SPDX-License-Identifier: Apache-2.0
"""An arm: one way of starting, which the runner samples among the others.

Life of an arm, called by runner.py:

    setup()                 once; NotRun, or any error, leaves its cell empty with the reason
    prepare(), sample()     for each warm-up and sample; only sample() holds the clocks
    settle()                after each sample: what must not fall into another arm's sample
    teardown()              once, also after a failure of setup()

An error of prepare(), sample() or settle() fails that sample, is counted and goes on.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.model import ArmRow, Sample


class NotRun(Exception):
    """This arm can't be had here; the message is the reason that the report gives."""


@dataclass(frozen=True)
class Template:
    """A template that stands, as its manifest tells."""

    name: str
    folder: Path
    vcpus: int
    memory_mib: int
    manifest: dict[str, object]

    @property
    def size(self) -> str:
        return f"{self.vcpus}c-{self.memory_mib}m"


@dataclass
class Context:
    """What arms and experiments are given."""

    top: Path  # the checkout
    bin: Path  # thaw and thaw-vmm, on a file system that caches pages
    state: Path  # THAW_STATE: templates, disks; the disk that everything is measured on
    guest: Path  # vmlinux, initramfs.cpio, root.erofs
    work: Path  # a folder of this run on that disk, removed at its end
    templates: list[Template]  # the first is the one that peers start
    seed: int = 1
    n: int | None = None  # --n: samples of every arm instead of the plan's

    def template(self, name: str) -> Template:
        for one in self.templates:
            if one.name == name:
                return one
        raise NotRun(f"no template {name}")

    def drop_caches(self) -> None:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def log(self, text: str) -> None:
        print(f"lab: {text}", file=sys.stderr, flush=True)


class Arm:
    """Base of all arms: a subclass has sample() and what else it needs."""

    def __init__(self, row: ArmRow) -> None:
        self.row = row

    @property
    def id(self) -> str:
        return self.row.id

    def setup(self) -> None:
        """What is made once for all samples."""

    def prepare(self) -> None:
        """What a sample finds; outside the clocks."""

    def sample(self) -> Sample:
        """One start; keys as model.SAMPLE_KEYS, without seq."""
        raise NotImplementedError

    def settle(self) -> None:
        """Back to what other arms may find; outside the clocks."""

    def teardown(self) -> None:
        """Undo setup(); also called when setup() failed half-way."""
