# SPDX-License-Identifier: Apache-2.0
"""An arm that is one command line: containers, which share the host's kernel and root.

c5, wall  start of the container's process -> its end, with the command's output read: such a
          client has its result only when the process ends
"""

from __future__ import annotations

from collections.abc import Callable

from lab.arms import Arm, NotRun
from lab.measure import Failed, run_good
from lab.model import ArmRow, Sample

TRUE = ["/bin/true"]
ECHO = ["/bin/echo", "a line of output"]


class Container(Arm):
    """@argv(command, number): the command line of sample @number. Output must be @expected."""

    def __init__(
        self,
        peer: str,
        variant: str,
        command: list[str],
        argv: Callable[[list[str], int], list[str]],
        require: Callable[[], None],
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            ArmRow(
                id=f"peer/{peer}/{variant}",
                kind="peer",
                peer=peer,
                variant=variant,
                cache="hot",
                command=command,
            )
        )
        self.expected = " ".join(command[1:]) + "\n" if command[0] == "/bin/echo" else ""
        self.argv = argv
        self.require = require
        self.cleanup = cleanup
        self.number = 0

    def setup(self) -> None:
        self.require()
        try:
            self.sample()
        except Failed as error:
            raise NotRun(str(error)) from error

    def sample(self) -> Sample:
        self.number += 1
        ended = run_good(self.argv(self.row.command, self.number))
        if ended.output != self.expected:
            raise Failed(f"output is {ended.output[:200]!r}, not {self.expected!r}")
        return {"c5": ended.wall_ms, "wall": ended.wall_ms}

    def teardown(self) -> None:
        if self.cleanup is not None:
            self.cleanup()
