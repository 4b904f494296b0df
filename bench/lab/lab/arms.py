# SPDX-License-Identifier: Apache-2.0
"""An arm: one way of starting, which the runner samples among the others.

Life of an arm, called by runner.py:

    setup()                 once; NotRun, or any error, leaves its cell empty with the reason
    warm()                  before a row of hot samples, when others have dropped the page cache
    release()               before a row of cold samples
    prepare(), sample()     for each warm-up and sample; only sample() holds the clocks
    settle()                after each sample: what must not fall into another arm's sample
    teardown()              once, also after a failure of setup()

An error of prepare(), sample() or settle() fails that sample; it is counted and the run goes on.
The runner adds `seq` and `cpu_ms` (what all processes that the lab starts have used, clients and
machines and refills of pools).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lab.model import ArmRow, Sample


class NotRun(Exception):
    """This arm can't be had here; the message is the reason that the report gives."""


@dataclass(frozen=True)
class Template:
    """A template that stands."""

    label: str  # what is in it: debian, numpy, node; the report's name
    name: str  # of the template itself: one label can come in several sizes
    folder: Path
    guest: Path  # the guest folder that it was built from
    vcpus: int
    memory_mib: int
    command: list[str]  # what a first command is here
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
    guest: Path  # vmlinux, initramfs.cpio, root.erofs of the standard guest
    work: Path  # a folder of this run on that disk, removed at its end
    templates: list[Template]  # the first is the one that peers start
    seed: int = 1
    cache_drops: int = 0

    @property
    def thaw(self) -> str:
        return str(self.bin / "thaw")

    @property
    def thaw_vmm(self) -> str:
        return str(self.bin / "thaw-vmm")

    def drop_caches(self) -> None:
        """Write back and forget the page cache, dentries and inodes of the whole machine."""
        os.sync()
        try:
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
        except OSError as error:
            raise NotRun(f"the page cache can't be dropped: {error.strerror}") from error
        self.cache_drops += 1

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

    def warm(self) -> None:
        """The page cache as hot samples find it, after it was dropped: by default a start."""
        self.prepare()
        self.sample()
        self.settle()

    def prepare(self) -> None:
        """What a sample finds; outside the clocks."""

    def sample(self) -> Sample:
        """One start; keys as model.SAMPLE_KEYS, without seq."""
        raise NotImplementedError

    def settle(self) -> None:
        """Back to what other arms may find; outside the clocks."""

    def release(self) -> None:
        """Before a row of cold samples: let go of what maps files, since a page that is mapped is
        not dropped. prepare() makes it again."""

    def overhead_ms(self) -> float:
        """Processor time so far of children that only the lab needs: none of a sample's."""
        return 0.0

    def teardown(self) -> None:
        """Undo setup(); also called when setup() failed half-way."""


class Adapter(Protocol):
    """A peer, as lab.peers.ADAPTERS lists it."""

    name: str

    def arms(self, ctx: Context) -> list[Arm]:
        """Its arms; those that can't be had say so in row.not_run, or by NotRun in setup()."""
        ...
