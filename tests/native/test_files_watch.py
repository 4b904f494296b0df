# SPDX-License-Identifier: Apache-2.0
"""thaw-files watch: every change is told, moves with both names, an overflow never in silence."""

# Names that are not UTF-8 are bytes, which pathlib does not take.
# ruff: noqa: PTH101, PTH102

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path

from thawfiles import Running, run

Event = tuple[str, bytes, bytes]


def watch(folder: Path, flags: str = "r") -> Running:
    running = Running("watch", folder, flags)
    assert running.frame().kind == "opened"
    return running


def event(running: Running) -> Event:
    frame = running.frame()
    assert frame.kind == "event", frame
    return frame.event, frame.path, frame.to


def until(running: Running, last: Event) -> list[Event]:
    """Events up to and with @last."""
    seen = [event(running)]
    while seen[-1] != last:
        seen.append(event(running))
    return seen


def test_each_kind(tmp_path: Path) -> None:
    with watch(tmp_path) as running:
        file = tmp_path / "f"
        file.touch()
        assert event(running) == ("create", b"f", b"")
        file.write_bytes(b"x")
        assert until(running, ("modify", b"f", b""))
        file.chmod(0o600)
        assert until(running, ("attrib", b"f", b""))
        file.rename(tmp_path / "g")
        assert until(running, ("move", b"f", b"g"))
        (tmp_path / "g").unlink()
        assert until(running, ("delete", b"g", b""))


def test_new_folders_are_watched(tmp_path: Path) -> None:
    with watch(tmp_path) as running:
        (tmp_path / "a/b/c").mkdir(parents=True)
        (tmp_path / "a/b/c/f").touch()
        names = {path for _, path, _ in until(running, ("create", b"a/b/c/f", b""))}
        assert {b"a", b"a/b", b"a/b/c", b"a/b/c/f"} <= names
        (tmp_path / "a/b/c/g").touch()
        until(running, ("create", b"a/b/c/g", b""))


def test_nothing_in_folders_made_in_a_hurry_is_missed(tmp_path: Path) -> None:
    want = set()
    with watch(tmp_path) as running:
        for number in range(200):
            folder = tmp_path / f"d{number}/e/f"
            folder.mkdir(parents=True)
            (folder / "file").touch()
            want.add(b"d%d/e/f/file" % number)
        (tmp_path / "last").touch()
        seen = {
            path for kind, path, _ in until(running, ("create", b"last", b"")) if kind == "create"
        }
    assert want <= seen


def test_not_recursive(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with watch(tmp_path, "-") as running:
        (tmp_path / "d/x").touch()
        (tmp_path / "e").mkdir()
        (tmp_path / "e/y").touch()
        (tmp_path / "last").touch()
        seen = until(running, ("create", b"last", b""))
    assert seen == [("create", b"e", b""), ("create", b"last", b"")]


def test_moved_folders_keep_their_watches(tmp_path: Path) -> None:
    (tmp_path / "a/sub/deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    with watch(tmp_path) as running:
        (tmp_path / "a/sub").rename(tmp_path / "b/new")
        assert event(running) == ("move", b"a/sub", b"b/new")
        (tmp_path / "b/new/deep/f").touch()
        until(running, ("create", b"b/new/deep/f", b""))
        (tmp_path / "b").rename(tmp_path / "c")
        until(running, ("move", b"b", b"c"))
        (tmp_path / "c/new/deep/f").unlink()
        until(running, ("delete", b"c/new/deep/f", b""))


def test_moves_across_the_border(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "d/e").mkdir(parents=True)
    (outside / "n/m").mkdir(parents=True)
    (outside / "n/m/f").touch()
    with watch(inside) as running:
        (inside / "d").rename(outside / "d")
        assert event(running) == ("delete", b"d", b"")
        (outside / "d/e/unseen").touch()
        (outside / "n").rename(inside / "n")
        seen = until(running, ("create", b"n/m/f", b""))
        assert ("create", b"n", b"") in seen
        assert not any(b"unseen" in path for _, path, _ in seen)
        (inside / "n/m/g").touch()
        until(running, ("create", b"n/m/g", b""))


def test_the_folder_goes(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    with watch(folder) as running:
        folder.rmdir()
        assert until(running, ("delete", b"", b""))
        assert running.frame().kind == "done"
        assert running.proc.wait(10) == 0


def test_the_folder_is_moved(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    with watch(folder) as running:
        folder.rename(tmp_path / "e")
        assert until(running, ("delete", b"", b""))
        assert running.frame().kind == "done"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    with watch(file, "-") as running:
        file.write_bytes(b"x")
        assert until(running, ("modify", b"", b""))
        file.unlink()
        assert until(running, ("delete", b"", b""))
        assert running.frame().kind == "done"


def test_links_are_not_followed_below_the_top(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/l").symlink_to("../out")
    (tmp_path / "top").symlink_to("in")
    with watch(tmp_path / "top") as running:
        (tmp_path / "out/x").touch()
        (tmp_path / "in/y").touch()
        assert event(running) == ("create", b"y", b"")


def test_an_overflow_is_told_and_nothing_after_it_is_missed(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with watch(tmp_path) as running:
        for number in range(limit // 2 + 60_000):
            os.close(os.open(tmp_path / f"{number:06}", os.O_CREAT | os.O_WRONLY))
            os.chmod(tmp_path / f"{number:06}", 0o600)
        (tmp_path / "hidden").mkdir()
        until(running, ("overflow", b"", b""))
        (tmp_path / "hidden/f").touch()
        until(running, ("create", b"hidden/f", b""))


def test_a_busy_tree(tmp_path: Path) -> None:
    """Threads make, move and remove; what is there in the end was told, and it goes on."""

    def work(name: str) -> None:
        for number in range(150):
            folder = tmp_path / name / str(number)
            (folder / "sub").mkdir(parents=True)
            (folder / "sub/f").touch()
            folder.rename(tmp_path / f"{name}-{number}")
            if number % 2:
                subprocess.run(["rm", "-r", tmp_path / f"{name}-{number}"], check=True)

    with watch(tmp_path) as running:
        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in "abc":
            (tmp_path / f"{name}-148/sub/late").touch()
        (tmp_path / "last").touch()
        seen = until(running, ("create", b"last", b""))
        assert {b"%s-148/sub/late" % name for name in (b"a", b"b", b"c")} <= {e[1] for e in seen}


def test_names_are_bytes(tmp_path: Path) -> None:
    with watch(tmp_path) as running:
        os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
        assert event(running) == ("create", b"\xff\xfe", b"")


def test_errors(tmp_path: Path) -> None:
    last = run("watch", tmp_path / "none", "r").last
    assert (last.kind, last.error, last.path) == ("error", errno.ENOENT, bytes(tmp_path / "none"))
