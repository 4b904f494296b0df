# SPDX-License-Identifier: Apache-2.0
"""Sandboxes that stay, with a stand-in for thaw-vmm: ids, folders, what is finished, undone or
removed after a kill. Real machines are in tests/vm/test_fork.py."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_snapshot
import pytest

TOP = Path(__file__).resolve().parent.parent.parent
THAW = Path(os.environ.get("THAW_BIN", TOP / "build/release/thaw"))
FAKE = TOP / "tests/native/fake_vmm.py"
WAIT_S = 30

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not THAW.exists(), reason=f"{THAW} is not built"),
]


def eventually(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Boxes:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "s"
        self.templates = self.state / "templates"
        for name in ("templates/debian", "scratch", "logs", "images"):
            (self.state / name).mkdir(parents=True)
        fake_snapshot.write(self.templates / "debian", "debian")

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(THAW), *args],
            env={
                "PATH": os.environ["PATH"],
                "THAW_STATE": str(self.state),
                "THAW_SOCKET": "",  # no thawd that this machine may have
                "THAW_VMM": str(FAKE),
                **env,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ok(self, *args: str, **env: str) -> str:
        proc = self(*args, **env)
        assert proc.returncode == 0, proc.stderr
        return proc.stdout.strip()

    def ps(self) -> dict[str, dict[str, Any]]:
        return {box["id"]: box for box in json.loads(self.ok("ps", "-o", "json"))}

    def snaps(self) -> list[str]:
        names = [path.name for path in self.templates.iterdir()]
        return sorted(name for name in names if name.lstrip(".").startswith("snap."))

    def folder(self, box: str) -> Path:
        return self.state / "run" / box

    def meta(self, box: str, **change: str) -> None:
        path = self.folder(box) / "meta.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    def kill(self, box: str) -> None:
        pid = int((self.folder(box) / "pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: not alive(pid))


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    made = Boxes(tmp_path)
    yield made
    run = made.state / "run"
    for folder in run.glob("[0-9a-f]*") if run.exists() else []:
        made("rm", "--force", folder.name)
    left = [path.name for path in run.glob("[0-9a-f]*")] if run.exists() else []
    assert not left and not made.snaps()


def test_it_stays_and_is_listed(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    assert len(box) == 12 and set(box) <= set("0123456789abcdef")
    listed = boxes.ps()[box]
    assert listed["state"] == "running" and listed["template"] == "debian"
    assert listed["parent"] is None and listed["hostname"] == box
    assert alive(listed["pid"])
    assert (boxes.folder(box).stat().st_mode & 0o777) == 0o700
    text = boxes.ok("ps")
    assert text.splitlines()[0].split()[:3] == ["NAME", "TEMPLATE", "SIZE"]
    assert text.splitlines()[1].split()[:4] == [box, "debian", "-", "running"]
    assert boxes("template", "rm", "debian").returncode == 1
    boxes.ok("stop", box)
    assert not boxes.ps() and not alive(listed["pid"])
    assert not boxes.folder(box).exists()


def test_exec_by_the_start_of_an_id(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", "--hostname", "h")
    script = "echo $A; pwd; exit 7"
    proc = boxes("exec", box[:4], "-e", "A=b", "-w", "/tmp", "--", "sh", "-c", script)
    assert (proc.returncode, proc.stdout) == (7, "b\n/tmp\n")
    assert boxes.ps()[box]["hostname"] == "h"
    assert boxes("exec", box, "--", "no-such-program").returncode == 127
    assert boxes("exec", box, "--timeout", "50ms", "--", "sleep", "60").returncode == 124
    assert boxes("exec", "zz", "--", "true").returncode == 125
    proc = boxes("exec", "0" * 12 if box[0] != "0" else "1" * 12, "--", "true")
    assert proc.returncode == 125 and "no sandbox" in proc.stderr


def test_ambiguous_start_of_an_id(boxes: Boxes) -> None:
    ids = [boxes.ok("run", "-d", "debian") for _ in range(2)]
    start = ids[0][:4] + "0" * 8
    boxes.folder(ids[1]).rename(boxes.folder(start))
    boxes.meta(start, id=start)
    proc = boxes("exec", ids[0][:3], "--", "true")
    assert proc.returncode == 125 and "give more of it" in proc.stderr
    boxes.folder(start).rename(boxes.folder(ids[1]))
    boxes.meta(ids[1], id=ids[1])


def test_detached_command_goes_on(boxes: Boxes, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"while [ ! -e {mark}.go ]; do sleep 0.02; done; echo done > {mark}"
    box = boxes.ok("run", "-d", "debian", "--", "sh", "-c", script)
    assert not mark.exists()
    Path(f"{mark}.go").touch()
    assert eventually(mark.exists)
    mark.unlink()
    assert boxes.ok("exec", "-d", box, "--", "sh", "-c", f"echo lost; {script}") == ""
    assert eventually(mark.exists)
    proc = boxes("exec", "-d", box, "--", "no-such-program")
    assert proc.returncode == 127
    proc = boxes("exec", "-d", "-i", box, "--", "true")
    assert proc.returncode == 125 and "--detach" in proc.stderr
    proc = boxes("run", "-d", "debian", "--", "no-such-program")
    assert proc.returncode == 127 and list(boxes.ps()) == [box]


def test_start_that_fails_leaves_nothing(boxes: Boxes, tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    proc = boxes("run", "-d", "debian", THAW_FAKE_ONCE=str(once))
    assert proc.returncode == 125 and "a word of its own" in proc.stderr and not proc.stdout
    assert not boxes.ps()
    proc = boxes("run", "-d", "nothing")
    assert proc.returncode == 125 and "no template 'nothing'" in proc.stderr
    assert boxes("run", "debian").returncode == 125


def test_machine_that_ends_at_once_is_explained(boxes: Boxes) -> None:
    for _ in range(20):
        proc = boxes("run", "-d", "debian", THAW_VMM="/bin/false")
        assert proc.returncode == 125 and "did not start: thaw-vmm ended" in proc.stderr
        assert "No such process" not in proc.stderr
    assert not boxes.ps()


def test_state_folder_with_too_long_a_path(boxes: Boxes, tmp_path: Path) -> None:
    far = tmp_path / ("x" * 90)
    far.symlink_to(boxes.state)
    proc = boxes("run", "-d", "debian", THAW_STATE=str(far))
    assert proc.returncode == 125 and "THAW_STATE has to be shorter" in proc.stderr
    assert not boxes.ps()


def test_fork(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    result = json.loads(boxes.ok("fork", box, "--count", "3", "-o", "json"))
    assert result["parent"] == box and result["pause_ms"] == 1.5
    assert result["disk_usage_bytes"] > 0
    clones = [clone["id"] for clone in result["clones"]]
    assert len(set(clones)) == 3 and box not in clones
    for clone in result["clones"]:
        assert clone["error"] is None and clone["start_ms"] > 0 and clone["clocks_ms"]["c1"] > 0
    listed = boxes.ps()
    assert set(listed) == {box, *clones}
    assert {listed[clone]["parent"] for clone in clones} == {box}
    assert {listed[clone]["snapshot"] for clone in clones} == {result["snapshot"]}
    assert boxes.snaps() == [result["snapshot"]]
    assert result["snapshot"] not in boxes.ok("template", "ls")
    assert boxes("template", "rm", result["snapshot"]).returncode == 1
    text = boxes.ok("fork", clones[0])
    assert boxes.ps()[text]["parent"] == clones[0]
    boxes.ok("stop", *clones[:2])
    assert result["snapshot"] in boxes.snaps()
    boxes.ok("rm", "--force", clones[2])
    assert result["snapshot"] not in boxes.snaps()
    boxes.ok("stop", text, box)
    assert not boxes.snaps()


def test_one_clone_fails_and_the_others_run(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes.ok("run", "-d", "debian")
    once = tmp_path / "once"
    once.touch()
    proc = boxes("fork", box, "-n", "3", "-o", "json", THAW_FAKE_ONCE=str(once))
    assert proc.returncode == 1
    clones = json.loads(proc.stdout)["clones"]
    bad = [clone for clone in clones if clone["error"]]
    assert len(bad) == 1 and "a word of its own" in bad[0]["error"]
    assert set(boxes.ps()) == {box, *(c["id"] for c in clones if not c["error"])}
    once.touch()
    proc = boxes("fork", box, "-n", "2", THAW_FAKE_ONCE=str(once))
    assert proc.returncode == 1 and len(proc.stdout.split()) == 1
    assert "a word of its own" in proc.stderr and "clone " in proc.stderr


@pytest.mark.parametrize(
    ("fake", "word"),
    [
        ("snapshot-fails", "No space left"),
        ("not-armed", "busy"),
        ("die-at-snapshot", "ended"),
    ],
)
def test_fork_that_fails_leaves_nothing(boxes: Boxes, fake: str, word: str) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE=fake)
    proc = boxes("fork", box)
    assert proc.returncode == 1 and word in proc.stderr, proc.stderr
    assert not boxes.snaps()
    assert set(boxes.ps()) == (set() if fake == "die-at-snapshot" else {box})


def test_guest_that_does_not_wait_to_be_asked(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="eager-guest")
    clone = boxes.ok("fork", box)
    assert boxes.ps()[clone]["parent"] == box


def test_another_owner_is_in_the_way(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="no-word")
    proc = boxes("fork", box)
    assert proc.returncode == 1 and "another process controls it" in proc.stderr


def test_pause_and_resume(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", "--hostname", "kept")
    pid = boxes.ps()[box]["pid"]
    paused = json.loads(boxes.ok("pause", box, "-o", "json"))
    assert paused["id"] == box and not alive(pid)
    listed = boxes.ps()[box]
    assert listed["state"] == "paused" and listed["pid"] is None
    assert listed["snapshot"] == paused["snapshot"] and boxes.snaps() == [paused["snapshot"]]
    for verb in ("pause", "fork", "stop"):
        proc = boxes(verb, box)
        assert proc.returncode == 1 and "is paused" in proc.stderr, proc.stderr
    assert boxes("exec", box, "--", "true").returncode == 125
    assert boxes.ok("resume", box) == box
    listed = boxes.ps()[box]
    assert listed["state"] == "running" and listed["hostname"] == "kept"
    proc = boxes("resume", box)
    assert proc.returncode == 1 and "is not paused" in proc.stderr
    assert boxes.snaps() == [paused["snapshot"]]
    again = json.loads(boxes.ok("pause", box, "-o", "json"))
    # The stand-in's snapshots are whole: nothing stands on the first one any more.
    assert boxes.snaps() == [again["snapshot"]]
    boxes.ok("rm", box)
    assert not boxes.ps() and not boxes.snaps()


def test_pause_that_fails_goes_on(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="snapshot-fails")
    assert boxes("pause", box).returncode == 1
    listed = boxes.ps()[box]
    assert listed["state"] == "running" and alive(listed["pid"])


def test_half_file_of_a_killed_command_with_the_same_pid(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    script = f'echo "{{" > {boxes.folder(box)}/meta.json.$$.tmp; exec {THAW} pause {box}'
    subprocess.run(
        ["sh", "-c", script],
        env={"PATH": os.environ["PATH"], "THAW_STATE": str(boxes.state), "THAW_VMM": str(FAKE)},
        check=True,
    )
    assert boxes.ps()[box]["state"] == "paused"


def test_snapshot_of_what_can_not_be_read_stays(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    snap = json.loads(boxes.ok("pause", box, "-o", "json"))["snapshot"]
    boxes.meta(box, state="of a later version")
    proc = boxes("ps")
    assert proc.returncode == 0 and "left alone" in proc.stderr and boxes.snaps() == [snap]
    boxes.meta(box, state="paused")
    assert boxes.ok("resume", box) == box


def test_resume_that_fails_stays_paused(boxes: Boxes, tmp_path: Path) -> None:
    box = boxes.ok("run", "-d", "debian")
    boxes.ok("pause", box)
    once = tmp_path / "once"
    once.touch()
    proc = boxes("resume", box, THAW_FAKE_ONCE=str(once))
    assert proc.returncode == 1 and "stays paused" in proc.stderr
    assert boxes.ps()[box]["state"] == "paused"
    assert boxes.ok("resume", box) == box


def test_killed_machine_is_told_of_and_removed(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    clone = boxes.ok("fork", box)
    boxes.kill(clone)
    with (boxes.folder(clone) / "log").open("a") as log:
        log.write("first\nits last \x1b[2Jwords\n")
    proc = boxes("exec", clone, "--", "true")
    assert proc.returncode == 125 and "has ended: its last ?[2Jwords\n" in proc.stderr
    proc = boxes("fork", clone)
    # The log is gone with the sandbox, so that its place would be of no use.
    assert proc.returncode == 1 and "has ended: its last ?[2Jwords\n" in proc.stderr
    # The fork has swept.
    assert set(boxes.ps()) == {box} and not boxes.snaps()
    boxes.kill(box)
    boxes.ok("rm", box)
    assert not boxes.ps()


def test_reused_pid_and_reboot_are_seen(boxes: Boxes) -> None:
    box, other = boxes.ok("run", "-d", "debian"), boxes.ok("run", "-d", "debian")
    boxes.ok("pause", other)
    file = boxes.folder(box) / "pid"
    number, start, boot = text = file.read_text().split()
    file.write_text(f"{number} {int(start) + 1} {boot}\n")
    assert boxes("exec", box, "--", "true").returncode == 125
    file.write_text(f"{number} {start} {boot[::-1]}\n")
    assert boxes("exec", box, "--", "true").returncode == 125
    file.write_text(" ".join(text) + "\n")
    assert boxes("exec", box, "--", "true").returncode == 0
    assert alive(int(number))
    # A pid file of another boot beside a paused one says nothing.
    (boxes.folder(other) / "pid").write_text(f"{number} {start} {boot[::-1]}\n")
    assert boxes.ps()[other]["state"] == "paused"
    assert boxes.ok("resume", other) == other


def test_pause_whose_command_was_killed(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    name = "snap.0123456789ab"
    # Announced, not written: the machine runs.
    boxes.meta(box, state="pausing", next=name)
    assert boxes.ps()[box]["state"] == "running"
    # Announced and written, and the machine has ended.
    boxes.meta(box, state="pausing", next=name)
    (boxes.templates / name).mkdir()
    fake_snapshot.write(boxes.templates / name, name)
    boxes.kill(box)
    assert boxes.ps()[box]["state"] == "paused" and boxes.snaps() == [name]
    boxes.meta(box, state="resuming")
    assert boxes.ok("resume", box) == box
    assert boxes.ps()[box]["snapshot"] == name
    # Announced, not written, and the machine is gone: nothing to come back to.
    boxes.meta(box, state="pausing", next="snap.ba9876543210")
    boxes.kill(box)
    assert not boxes.ps() and not boxes.snaps()


def test_pause_that_was_killed_while_its_machine_ends(boxes: Boxes) -> None:
    """The snapshot is there, and nobody holds it: it is what will be left of the sandbox."""
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="no-word")
    name = "snap.0123456789ab"
    boxes.meta(box, state="pausing", next=name)
    (boxes.templates / name).mkdir()
    fake_snapshot.write(boxes.templates / name, name)
    assert boxes.ps()[box]["state"] == "pausing" and boxes.snaps() == [name]
    boxes.kill(box)
    assert boxes.ps()[box]["state"] == "paused" and boxes.snaps() == [name]


def test_resume_that_was_killed_and_fails_later(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="not-resumed")
    boxes.meta(box, state="resuming")
    assert boxes.ps()[box]["state"] == "resuming"
    boxes.kill(box)
    assert boxes.ps()[box]["state"] == "paused"


def test_sweep_waits_while_sandboxes_are_made(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    name = "snap.0123456789ab"
    (boxes.templates / name).mkdir()
    fake_snapshot.write(boxes.templates / name, name)
    half = boxes.templates / ".snap.0123456789ac.tmp-1-1"
    half.mkdir()
    (half / "memory").touch()
    with (boxes.state / "run/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert set(boxes.ps()) == {box} and len(boxes.snaps()) == 2
    assert set(boxes.ps()) == {box} and not boxes.snaps()


def test_folder_of_a_start_that_was_killed(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    (boxes.state / "run/00000000000a").mkdir()
    assert set(boxes.ps()) == {box}
    assert not (boxes.state / "run/00000000000a").exists()
    # What can't be read is left alone.
    boxes.folder("00000000000b").mkdir()
    (boxes.folder("00000000000b") / "meta.json").write_text("{}")
    proc = boxes("ps")
    assert proc.returncode == 0 and "left alone" in proc.stderr
    (boxes.folder("00000000000b") / "meta.json").unlink()


def test_machine_that_nobody_knows_is_ended(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    pid = boxes.ps()[box]["pid"]
    (boxes.folder(box) / "pid").unlink()
    assert not boxes.ps() and not alive(pid)


def test_resume_that_was_killed_leaves_one_machine(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    paused = json.loads(boxes.ok("pause", box, "-o", "json"))
    boxes.ok("resume", box)
    pid = boxes.ps()[box]["pid"]
    # As it is between the start of the machine and the note of its number.
    boxes.meta(box, state="resuming")
    (boxes.folder(box) / "pid").unlink()
    assert boxes.ps()[box]["state"] == "paused" and not alive(pid)
    assert boxes.ok("resume", box) == box and boxes.snaps() == [paused["snapshot"]]


@pytest.mark.parametrize("words", [("stop",), ("rm", "--force")])
def test_machine_that_nobody_knows_goes_with_its_sandbox(
    boxes: Boxes, words: tuple[str, ...]
) -> None:
    box = boxes.ok("run", "-d", "debian")
    pid = boxes.ps()[box]["pid"]
    (boxes.folder(box) / "pid").unlink()
    boxes.ok(*words, box)
    assert not alive(pid) and not boxes.ps()


def test_what_can_not_be_looked_at_is_not_dead(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    pid, file = boxes.ps()[box]["pid"], boxes.folder(box) / "pid"
    file.rename(file.with_suffix(".kept"))
    file.symlink_to("pid")
    proc = boxes("ps")
    assert proc.returncode == 0 and "left alone" in proc.stderr
    assert boxes("stop", box).returncode == 1 and boxes("rm", "--force", box).returncode == 1
    file.with_suffix(".kept").rename(file)
    assert boxes.ps()[box]["state"] == "running" and alive(pid)


def test_more_clones_than_are_started_at_a_time(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    clones = boxes.ok("fork", box, "-n", "40").split()
    assert len(set(clones)) == 40 and set(boxes.ps()) == {box, *clones}
    for start in range(0, 40, 4):
        boxes.ok("rm", "--force", *clones[start : start + 4])
    assert not boxes.snaps()


def test_stop_of_a_guest_that_does_not_answer(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian", THAW_FAKE="deaf")
    pid = boxes.ps()[box]["pid"]
    proc = boxes("stop", "-t", "11m", box)
    assert proc.returncode == 2 and "at most 10m" in proc.stderr
    proc = boxes("stop", "-t", "1", box)
    assert proc.returncode == 0 and not alive(pid) and not boxes.ps()


def test_rm_refuses_what_runs(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    proc = boxes("rm", box)
    assert proc.returncode == 1 and "--force" in proc.stderr and box in boxes.ps()
    proc = boxes("rm", "--force", box, "0" * 12 if box[0] != "0" else "1" * 12)
    assert proc.returncode == 1 and not boxes.ps()


def test_completion_knows_the_sandboxes(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    script = (
        "source completions/thaw.bash; COMP_WORDS=(build/release/thaw {0} ''); COMP_CWORD=2; "
        '_thaw; echo "${{COMPREPLY[*]}}"'
    )
    for verb in ("exec", "fork", "pause", "resume", "stop", "rm"):
        out = subprocess.run(
            ["bash", "-c", script.format(verb)],
            env={
                "PATH": os.environ["PATH"],
                "THAW_STATE": str(boxes.state),
                "THAW_SOCKET": "",
            },
            cwd=TOP,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert out.split() == [box]


def test_names_of_snapshots_are_refused(boxes: Boxes) -> None:
    proc = boxes("template", "build", "snap.0123456789ab", "--from", "debian")
    assert proc.returncode == 1 and "sandboxes" in proc.stderr


def test_two_commands_on_one_sandbox(boxes: Boxes) -> None:
    box = boxes.ok("run", "-d", "debian")
    fd = os.open(boxes.folder(box), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    for verb in ("fork", "pause", "stop"):
        proc = boxes(verb, box)
        assert proc.returncode == 1 and "another command" in proc.stderr
    os.close(fd)
    assert boxes("exec", box, "--", "true").returncode == 0
