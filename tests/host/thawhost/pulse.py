# SPDX-License-Identifier: Apache-2.0
"""Inside the test host: does every processor still run, with a timer that fires?

The emulator has been seen to leave one processor deaf: its timer and its interrupts never came
again, while the other one went on, answered pings and waited for the first for ever. So a process
goes from processor to processor, sleeps on each, and notes the time after each round; a session
sends pings only while that note is fresh. A host that is half dead thus falls silent, and silence
is what the client takes for a hang.
"""

import mmap
import os
import signal
import struct
import time

STEP_S = 0.5
FRESH_S = 20.0
STAMP = struct.Struct("d")


class Pulse:
    """The note of the last round, shared with every process that is forked later."""

    def __init__(self) -> None:
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self.pid = 0

    def start(self) -> None:
        """Forks the process that makes the rounds. Call it again when that process has ended."""
        self._note()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            self._go_round()
        finally:
            os._exit(1)

    def is_fresh(self) -> bool:
        (stamp_s,) = STAMP.unpack_from(self.page)
        return time.monotonic() - stamp_s < FRESH_S

    def _note(self) -> None:
        STAMP.pack_into(self.page, 0, time.monotonic())

    def _go_round(self) -> None:
        while True:
            for cpu in range(os.cpu_count() or 1):
                os.sched_setaffinity(0, {cpu})
                time.sleep(STEP_S)
            self._note()
