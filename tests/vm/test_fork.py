# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that stay, forked, paused and resumed, with real guests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN, STATE, Thaw, build_template

# Renamed into its place: a reader, or a machine that is forked, must not find it empty.
COUNTER = (
    "i=0; while :; do"
    " i=$((i+1)); echo $i > /run/.count; mv /run/.count /run/count; sleep 0.05; done"
)


def eventually(what: Callable[[], bool], timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Boxes:
    def __init__(self, thaw: Thaw) -> None:
        self.thaw = thaw

    def ok(self, *args: str) -> str:
        proc = self.thaw(*args)
        assert proc.returncode == 0, proc.stderr.decode()
        return proc.stdout.decode().strip()

    def start(self, *args: str, template: str | None = None) -> str:
        return self.ok("run", "-d", template or self.thaw.template, *args)

    def sh(self, box: str, script: str) -> str:
        return self.ok("exec", box, "--", "sh", "-c", script)

    def fork(self, box: str, *args: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.ok("fork", box, "-o", "json", *args))
        assert result["parent"] == box
        return result

    def clone(self, box: str) -> str:
        clone: str = self.fork(box)["clones"][0]["id"]
        return clone

    def ps(self) -> dict[str, dict[str, Any]]:
        return {box["id"]: box for box in json.loads(self.ok("ps", "-o", "json"))}

    def snaps(self) -> list[str]:
        return sorted(p.name for p in (STATE / "templates").iterdir() if "snap." in p.name)

    def popen(self, box: str, script: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [str(BIN / "thaw"), "exec", box, "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def boxes(thaw: Thaw) -> Iterator[Boxes]:
    made = Boxes(thaw)
    assert not made.ps()
    yield made
    left = list(made.ps())
    for box in left:
        assert thaw("rm", "--force", box).returncode == 0
    assert not made.ps() and not made.snaps()
    assert [p.name for p in (STATE / "run").iterdir()] == [".lock"]


def counts(boxes: Boxes, box: str) -> bool:
    first = int(boxes.sh(box, "cat /run/count || echo 0"))
    return eventually(lambda: int(boxes.sh(box, "cat /run/count || echo 0")) > first)


def test_a_clone_has_the_parents_state_and_both_go_on(boxes: Boxes) -> None:
    box = boxes.start()
    boxes.sh(box, "echo disk > /root/f; echo ram > /run/g; mkdir /root/d; echo x > /root/d/x")
    boxes.ok("exec", "-d", box, "--", "sh", "-c", COUNTER)
    assert counts(boxes, box)
    before = int(boxes.sh(box, "cat /run/count"))
    result = boxes.fork(box)
    clone = result["clones"][0]["id"]
    assert result["pause_ms"] > 0 and result["diff"]
    assert 0 < result["memory_bytes"] < 128 << 20 and result["disk_usage_bytes"] > 0
    words = boxes.sh(clone, "cat /root/f /run/g /root/d/x /run/count").split()
    assert words[:3] == ["disk", "ram", "x"] and int(words[3]) >= before
    assert counts(boxes, clone) and counts(boxes, box)
    boxes.sh(clone, "echo clone > /root/f; echo clone > /run/g; rm -r /root/d")
    boxes.sh(box, "echo parent > /root/new")
    assert boxes.sh(box, "cat /root/f /run/g; ls /root/d").split() == ["disk", "ram", "x"]
    assert boxes.sh(clone, "cat /root/f /run/g; ls /root").split() == ["clone", "clone", "f"]


def test_commands_go_on_in_both(boxes: Boxes) -> None:
    """In the parent with their streams, in the clone without."""
    box = boxes.start()
    script = "echo one; while [ ! -e /run/go ]; do sleep 0.05; done; echo two | tee /run/mark; cat"
    with boxes.popen(box, script) as proc:
        assert proc.stdout and proc.stdout.readline() == b"one\n"
        clone = boxes.clone(box)
        boxes.sh(clone, "touch /run/go")
        assert eventually(lambda: "two" in boxes.sh(clone, "cat /run/mark || true"))
        assert boxes.sh(box, "cat /run/mark || echo none") == "none"
        boxes.sh(box, "touch /run/go")
        out, err = proc.communicate(timeout=60)
        assert (proc.returncode, out, err) == (0, b"two\n", b"")


def test_output_of_an_orphan_does_not_block_it(boxes: Boxes) -> None:
    box = boxes.start()
    script = "echo one; read x < /run/fifo; head -c 2000000 /dev/zero; echo done > /run/mark"
    boxes.sh(box, "mkfifo /run/fifo")
    with boxes.popen(box, script) as proc:
        assert proc.stdout and proc.stdout.read(4) == b"one\n"
        clone = boxes.clone(box)
        proc.kill()
    boxes.sh(clone, "echo > /run/fifo")
    assert eventually(lambda: "done" in boxes.sh(clone, "cat /run/mark || true"))
    # In the parent the command went with its client.
    assert "read x" not in boxes.sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


def test_eight_clones_are_eight(boxes: Boxes) -> None:
    box = boxes.start()
    result = boxes.fork(box, "--count", "8")
    clones = [clone["id"] for clone in result["clones"]]
    assert len(set(clones)) == 8 and all(clone["error"] is None for clone in result["clones"])
    script = (
        "cat /run/thaw/generation /run/machine-id; hostname; "
        "head -c 16 /dev/urandom | sha256sum | cut -c1-32; date +%s"
    )
    seen = [boxes.sh(each, script).split() for each in (box, *clones)]
    now = time.time()
    for column in range(4):
        assert len({words[column] for words in seen}) == 9, column
    for clone, words in zip(result["clones"], seen[1:], strict=True):
        assert words[0] == clone["generation"] and words[2] == clone["id"]
        assert abs(int(words[4]) - now) < 60


def test_fork_of_a_fork_outlives_its_line(boxes: Boxes) -> None:
    line = [boxes.start()]
    for generation in range(3):
        boxes.sh(line[-1], f"echo {generation} >> /root/line; echo {generation} >> /run/line")
        line.append(boxes.clone(line[-1]))
    assert boxes.sh(line[-1], "cat /root/line /run/line").split() == ["0", "1", "2"] * 2
    assert len(boxes.snaps()) == 3
    proc = boxes.thaw("template", "rm", boxes.thaw.template)
    assert proc.returncode == 1
    boxes.ok("stop", *line[:3])
    # The last one's memory is spread over all of them.
    assert len(boxes.snaps()) == 3
    assert boxes.sh(line[-1], "cat /root/line").split() == ["0", "1", "2"]
    boxes.ok("stop", line[-1])
    assert not boxes.snaps()


def test_fork_when_the_template_was_replaced(boxes: Boxes, template: Path) -> None:
    box = boxes.start()
    boxes.sh(box, "echo here > /root/f; echo here > /run/g")
    aside = template.with_name("t-aside")
    template.rename(aside)
    try:
        result = boxes.fork(box)
        clone = result["clones"][0]["id"]
        assert not result["diff"] and result["memory_bytes"] >= 128 << 20
        assert boxes.sh(clone, "cat /root/f /run/g").split() == ["here", "here"]
    finally:
        aside.rename(template)


def test_forked_again_and_again(boxes: Boxes) -> None:
    box = boxes.start()
    clones = []
    for i in range(3):
        boxes.sh(box, f"echo {i} > /run/i")
        clones.append(boxes.clone(box))
    assert [boxes.sh(clone, "cat /run/i") for clone in clones] == ["0", "1", "2"]


@pytest.mark.parametrize("strategy", ["copy", "uffd"])
def test_fork_by_other_strategies(boxes: Boxes, strategy: str) -> None:
    box = boxes.start("--strategy", strategy)
    boxes.sh(box, "echo here > /root/f; echo here > /run/g")
    result = boxes.fork(box, "--strategy", strategy)
    clone = result["clones"][0]
    assert clone["strategy"].startswith(strategy)
    assert boxes.sh(clone["id"], "cat /root/f /run/g").split() == ["here", "here"]


def test_fork_of_two_vcpus(boxes: Boxes, thaw: Thaw) -> None:
    recipe = Path(__file__).resolve().parents[2] / "snapshots/recipes/debian"
    build_template("t-smp2", "--vcpus", "2", "--recipe", str(recipe))
    box = boxes.start(template="t-smp2")
    busy = "while :; do :; done"
    for _ in range(2):
        boxes.ok("exec", "-d", box, "--", "sh", "-c", busy)
    boxes.ok("exec", "-d", box, "--", "sh", "-c", COUNTER)
    clone = boxes.clone(box)
    assert counts(boxes, clone) and counts(boxes, box)
    assert boxes.sh(clone, "nproc") == "2"


def test_pause_and_resume(boxes: Boxes) -> None:
    box = boxes.start("--hostname", "kept")
    boxes.sh(box, "echo disk > /root/f; echo ram > /run/g")
    boxes.ok("exec", "-d", box, "--", "sh", "-c", COUNTER)
    assert counts(boxes, box)
    before = int(boxes.sh(box, "cat /run/count"))
    generation = boxes.sh(box, "cat /run/thaw/generation")
    with boxes.popen(box, "echo one; sleep 1000") as proc:
        assert proc.stdout and proc.stdout.readline() == b"one\n"
        paused = json.loads(boxes.ok("pause", box, "-o", "json"))
        _out, err = proc.communicate(timeout=60)
        assert proc.returncode == 125 and b"was paused" in err
    assert boxes.ps()[box]["state"] == "paused" and paused["disk_usage_bytes"] > 0
    assert boxes.snaps() == [paused["snapshot"]]
    for verb in ("fork", "pause"):
        refused = boxes.thaw(verb, box)
        assert refused.returncode == 1 and b"is paused" in refused.stderr
    boxes.ok("resume", box)
    twice = boxes.thaw("resume", box)
    assert twice.returncode == 1 and b"is not paused" in twice.stderr
    words = boxes.sh(box, "cat /root/f /run/g; hostname; cat /run/count").split()
    assert words[:3] == ["disk", "ram", "kept"] and int(words[3]) >= before
    assert counts(boxes, box)
    assert "sleep 1000" in boxes.sh(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert boxes.sh(box, "cat /run/thaw/generation") != generation
    assert abs(int(boxes.sh(box, "date +%s")) - time.time()) < 60
    # And once more: a diff of the diff; then a fork of that.
    boxes.ok("pause", box)
    boxes.ok("resume", box)
    assert counts(boxes, box) and len(boxes.snaps()) == 2
    clone = boxes.clone(box)
    assert boxes.sh(clone, "cat /root/f /run/g; hostname").split() == ["disk", "ram", clone]
    assert counts(boxes, clone)


def test_a_chain_as_long_as_it_may_be(boxes: Boxes) -> None:
    """Sixteen snapshots on each other; the next one is whole, and those before it go."""
    box = boxes.start()
    for generation in range(16):
        boxes.sh(box, f"echo {generation} >> /root/line; echo {generation} >> /run/line")
        boxes.ok("pause", box)
        assert len(boxes.snaps()) == (generation + 1 if generation < 15 else 1)
        boxes.ok("resume", box)
    want = [str(generation) for generation in range(16)]
    assert boxes.sh(box, "cat /root/line /run/line").split() == want * 2
    assert boxes.fork(box)["diff"] and len(boxes.snaps()) == 2


def test_pause_killed_at_any_instant(boxes: Boxes) -> None:
    """Whenever the command dies, the sandbox runs or is paused, and nothing of it is lost."""
    box = boxes.start()
    boxes.ok("exec", "-d", box, "--", "sh", "-c", COUNTER)
    assert counts(boxes, box)
    for delay_s in (0.02, 0.1, 0.2, 0.4, 0.6):
        before = int(boxes.sh(box, "cat /run/count"))
        proc = subprocess.Popen([str(BIN / "thaw"), "pause", box], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        proc.kill()
        proc.wait()
        assert eventually(lambda: boxes.ps()[box]["state"] in ("running", "paused"))
        if boxes.ps()[box]["state"] == "paused":
            boxes.ok("resume", box)
        assert int(boxes.sh(box, "cat /run/count")) >= before
        assert counts(boxes, box)


def test_killed_machines_leave_nothing(boxes: Boxes) -> None:
    box = boxes.start()
    clone = boxes.clone(box)
    for each in (clone, box):
        os.kill(boxes.ps()[each]["pid"], signal.SIGKILL)
        assert eventually(lambda each=each: each not in boxes.ps())  # type: ignore[misc]
    refused = boxes.thaw("fork", box)
    assert refused.returncode == 1 and b"no sandbox" in refused.stderr
    assert not boxes.snaps()


def test_stop_lets_processes_end(boxes: Boxes, tmp_path: Path) -> None:
    console = tmp_path / "console"
    box = boxes.start("--console", str(console))
    script = "trap 'echo was asked to end > /dev/hvc0; exit' TERM; while :; do sleep 0.05; done"
    boxes.ok("exec", "-d", box, "--", "sh", "-c", script)
    boxes.ok("exec", "-d", box, "--", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    pid = boxes.ps()[box]["pid"]
    boxes.ok("stop", "-t", "2", box)
    assert "was asked to end" in console.read_text(errors="replace")
    assert not boxes.ps() and not Path(f"/proc/{pid}").exists()


def test_a_guest_that_powers_off_is_gone(boxes: Boxes) -> None:
    box = boxes.start()
    pid = boxes.ps()[box]["pid"]
    boxes.thaw("exec", box, "--", "sh", "-c", "echo o > /proc/sysrq-trigger; sleep 60")
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert not boxes.ps()


def test_the_guests_own_checkpoint_call_is_refused(boxes: Boxes) -> None:
    box = boxes.start()
    script = (
        "import fcntl, os, struct\n"
        "fd = os.open('/dev/thaw', os.O_RDWR)\n"
        "size = 4 * 2 + 8 * 2 + 4 * 2 + 8 + 4 * 2 + 16 + 64\n"
        "arg = bytearray(struct.pack('<I', size).ljust(size, b'\\0'))\n"
        "try:\n"
        "    print(fcntl.ioctl(fd, 0xc0000000 | size << 16 | 0xb701, arg))\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    assert boxes.ok("exec", box, "--", "python3", "-c", script) == "95"
    clone = boxes.clone(box)
    assert re.fullmatch(r"\d+", boxes.sh(clone, "cat /run/thaw/generation"))
