# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants of everything that runs: no process, virtual machine, lock or file is
left, and the next command works. `make soak` does the same more often.

KILL_SEED=N repeats what a failure names. tests/native/test_kill.py has export, import and pack.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import BIN, STATE, Thaw
from leftovers import files, kvm_vms, locks, processes, quiet

ROUNDS = 3
SEED = int(os.environ.get("KILL_SEED", "1"))
NAME = "t-kill"
CLIENT_S = 120
PYTHON = ("python3", "-c", "print(sum(range(100000)))")


@dataclass
class Kind:
    """Whom to kill, and what it is doing."""

    victim: str  # comm of a process; "client": the command itself
    args: tuple[str, ...]  # behind `thaw`; TEMPLATE stands for the template
    span_s: float  # about how long it takes


RUN = ("run", "TEMPLATE", "--no-pool")
RECORD = ("template", "record", "TEMPLATE", "--hot-runs", "1")
BUILD = ("template", "build", NAME, "--from", "TEMPLATE", "--replace", "--hot-runs", "1")
POOL = ("pool", "TEMPLATE", "--size", "2", "--populate")
KINDS = {
    "thaw run": Kind("client", (*RUN, "--", *PYTHON), 1.0),
    "thaw-vmm": Kind("thaw-vmm", (*RUN, "--", *PYTHON), 1.0),
    "uffd server": Kind("thaw-uffd", (*RUN, "--strategy", "uffd", "--", *PYTHON), 1.5),
    "build": Kind("client", BUILD, 6.0),
    "thaw-vmm of a build": Kind("thaw-vmm", (*BUILD, "--whole"), 6.0),
    "recorder": Kind("client", RECORD, 4.0),
    "recorder's clone": Kind("thaw-vmm", RECORD, 4.0),
    "pool": Kind("client", POOL, 1.5),
    "zygote": Kind("zygote", POOL, 1.5),
}


def left() -> tuple[object, ...]:
    """Logs stay on purpose: they tell why a build failed."""
    kept = {name for name in files() if not name.startswith(f"{STATE}/logs/")}
    mounts = Path("/proc/self/mountinfo").read_text()
    return processes(), kvm_vms(), locks(), kept, mounts


def find_victims(kind: Kind, client: subprocess.Popen[bytes], before: set[str]) -> list[int]:
    """All there are right now, in no order that matters."""
    if kind.victim == "client":
        return [client.pid]
    if kind.victim == "zygote":
        try:
            text = Path(f"/proc/{client.pid}/task/{client.pid}/children").read_text()
        except OSError:
            text = ""
        return [int(word) for word in text.split()]
    new = processes() - before
    return [int(name.split()[0]) for name in new if name.split()[1] == kind.victim]


def kill_once(thaw: Thaw, kind: Kind, rng: random.Random, span_s: float) -> str:
    """One start and one kill, and the end of all of it. Return: how it ended, for messages."""
    before = processes()
    args = [thaw.template if word == "TEMPLATE" else word for word in kind.args]
    client = subprocess.Popen(
        [str(BIN / "thaw"), *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(rng.uniform(0, span_s))
    victims = find_victims(kind, client, before)
    victim = rng.choice(victims) if victims else None
    if victim:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            victim = None
    if kind.args[0] == "pool" and kind.victim != "client":
        # It goes on without; that it ends well is the test.
        time.sleep(rng.uniform(0, span_s))
        client.terminate()
    code = client.wait(timeout=CLIENT_S)
    return f"{kind.victim} {victim or 'none yet'}, exit status {code}"


def kill_rounds(thaw: Thaw, name: str, rounds: int, seed: int) -> None:
    """@rounds kills of one kind, each looked at by itself."""
    kind = KINDS[name]
    rng = random.Random(f"{seed} {name}")
    thaw("template", "rm", NAME)
    before = left()
    for number in range(rounds):
        what = f"seed {seed}, {name}, {number}: {kill_once(thaw, kind, rng, kind.span_s)}"
        # Processes, machines and locks go by themselves, names with the next command.
        gone = quiet(lambda: left()[:3], lambda now: now == before[:3])
        assert gone == before[:3], what
        assert thaw("template", "ls").returncode == 0, what
        if (STATE / "templates" / NAME).exists():
            verify = thaw("template", "verify", NAME)
            assert verify.returncode == 0, (what, verify.stderr)
            assert thaw("template", "rm", NAME).returncode == 0, what
        now = left()
        assert now == before, (what, [str(set(a) ^ set(b)) for a, b in zip(now, before, strict=1)])  # type: ignore[call-overload]
    # All that was killed works.
    proc = thaw.run("--", "sh", "-c", "exit 7")
    assert proc.returncode == 7, proc.stderr
    if kind.args[0] == "template":
        args = [thaw.template if word == "TEMPLATE" else word for word in kind.args]
        proc = thaw(*args)
        assert proc.returncode == 0, proc.stderr
        thaw("template", "rm", NAME)


@pytest.mark.parametrize("name", KINDS)
def test_kill(thaw: Thaw, name: str) -> None:
    kill_rounds(thaw, name, ROUNDS, SEED)
