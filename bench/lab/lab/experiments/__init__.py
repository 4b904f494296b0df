# SPDX-License-Identifier: Apache-2.0
"""What is no single start: each is one function of a context and its plan's numbers."""

from __future__ import annotations

from collections.abc import Callable

from lab.arms import Context
from lab.experiments import burst, io, memory, replay, sweep

Numbers = dict[str, object]

RUN: dict[str, Callable[[Context, Numbers], dict[str, object]]] = {
    "burst": burst.run,
    "patterns": burst.run_patterns,
    "sweep": sweep.run,
    "memory": memory.run,
    "io": io.run,
    "replay": replay.run,
}
