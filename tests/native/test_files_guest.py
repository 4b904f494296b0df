# SPDX-License-Identifier: Apache-2.0
"""thaw-files by itself: every operation, with Linux's own errors."""

# Names that are not UTF-8 are bytes, which pathlib does not take.
# ruff: noqa: PTH102, PTH115

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from thawfiles import SIZED, Result, Running, run

USER = 1000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and users need root")


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="thaw-tree-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def small(tree: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tree / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def failed(result: Result, error: int, path: str | Path, to: str | Path | None = None) -> None:
    last = result.last
    assert last.kind == "error"
    assert errno.errorcode[last.error] == errno.errorcode[error]
    assert last.path == os.fsencode(path)
    assert last.to == (os.fsencode(to) if to else b"")
    assert last.text


# --- read ----------------------------------------------------------------------------------------


def test_read_whole(tree: Path) -> None:
    data = os.urandom(300_000)
    (tree / "f").write_bytes(data)
    result = run("read", tree / "f", "0", "-")
    assert result.out == data
    opened, done = result.frames
    assert (opened.kind, opened.size, opened.offset, opened.length) == (
        "opened",
        300_000,
        0,
        300_000,
    )
    assert opened.flags == SIZED
    assert (done.kind, done.bytes) == ("done", 300_000)


@pytest.mark.parametrize(
    ("offset", "length", "want"),
    [
        ("0", "4", b"0123"),
        ("8", "-", b"89"),
        ("3", "100", b"3456789"),
        ("-3", "-", b"789"),
        ("-100", "-", b"0123456789"),
        ("10", "-", b""),
        ("99", "5", b""),
        ("2", "0", b""),
    ],
)
def test_read_range(tree: Path, offset: str, length: str, want: bytes) -> None:
    (tree / "f").write_bytes(b"0123456789")
    result = run("read", tree / "f", offset, length)
    assert result.out == want
    assert result.frames[0].size == 10
    assert result.frames[0].length == len(want) == result.last.bytes


def test_read_what_the_kernel_makes_up() -> None:
    result = run("read", "/proc/self/status", "0", "-")
    assert b"Name:" in result.out
    assert result.frames[0].flags == 0
    assert result.last.bytes == len(result.out)


def test_read_an_empty_file_has_a_size(tree: Path) -> None:
    (tree / "f").touch()
    result = run("read", tree / "f", "0", "-")
    assert (result.out, result.frames[0].flags, result.frames[0].length) == (b"", SIZED, 0)


def test_read_a_file_that_shrinks(tree: Path) -> None:
    (tree / "f").write_bytes(bytes(1_000_000))
    with Running("read", tree / "f", "0", "-") as running:
        assert running.frame().length == 1_000_000
        os.truncate(tree / "f", 0)
        out = b""
        assert running.proc.stdout
        while more := running.proc.stdout.read(65536):
            out += more
        last = running.frame()
        assert len(out) < 1_000_000
        assert (last.kind, last.error) == ("error", errno.EIO)
        assert "shorter" in last.text


def test_read_errors(tree: Path) -> None:
    (tree / "folder").mkdir()
    (tree / "file").touch()
    (tree / "loop").symlink_to("loop")
    failed(run("read", tree / "none", "0", "-"), errno.ENOENT, tree / "none")
    failed(run("read", tree / "folder", "0", "-"), errno.EISDIR, tree / "folder")
    failed(run("read", tree / "file/x", "0", "-"), errno.ENOTDIR, tree / "file/x")
    failed(run("read", tree / "loop", "0", "-"), errno.ELOOP, tree / "loop")
    long = str(tree / ("n" * 256))
    failed(run("read", long, "0", "-"), errno.ENAMETOOLONG, long)
    long = str(tree) + "/x" * 2100
    failed(run("read", long, "0", "-"), errno.ENAMETOOLONG, long)
    failed(run("read", "", "0", "-"), errno.ENOENT, "")


@needs_root
def test_eacces(tree: Path) -> None:
    secret = tree / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    private = tree / "private"
    private.mkdir(mode=0o700)
    (private / "f").touch()
    failed(run("read", secret, "0", "-", user=USER), errno.EACCES, secret)
    failed(run("write", secret, "-", "ct", user=USER), errno.EACCES, secret)
    failed(run("write", tree / "new", "-", "ct", user=USER), errno.EACCES, tree / "new")
    failed(run("stat", private / "f", user=USER), errno.EACCES, private / "f")
    failed(run("list", private, "1", user=USER), errno.EACCES, private)
    failed(run("mkdir", tree / "d", "755", "-", user=USER), errno.EACCES, tree / "d")
    failed(run("mkdir", tree / "d/e", "755", "r", user=USER), errno.EACCES, tree / "d")
    failed(run("remove", secret, "-", user=USER), errno.EACCES, secret)
    failed(run("remove", private, "rf", user=USER), errno.EACCES, private)
    failed(run("symlink", "x", tree / "l", user=USER), errno.EACCES, tree / "l")
    failed(run("rename", secret, tree / "o", user=USER), errno.EACCES, secret, tree / "o")
    failed(run("chmod", secret, "644", user=USER), errno.EPERM, secret)
    failed(run("chown", secret, "1000", "-", "-", user=USER), errno.EPERM, secret)
    failed(run("tar_out", private, user=USER), errno.EACCES, private)
    failed(run("tar_in", private, "-", user=USER), errno.EACCES, private)
    failed(run("watch", private, "r", user=USER), errno.EACCES, private)


# --- write ---------------------------------------------------------------------------------------


def test_write(tree: Path) -> None:
    data = os.urandom(200_000)
    result = run("write", tree / "f", "-", "ct", stdin=data)
    assert [frame.kind for frame in result.frames] == ["opened", "done"]
    assert result.last.bytes == 200_000
    assert (tree / "f").read_bytes() == data
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o644
    run("write", tree / "f", "-", "ct", stdin=b"short")
    assert (tree / "f").read_bytes() == b"short"
    run("write", tree / "f", "-", "ca", stdin=b"er")
    assert (tree / "f").read_bytes() == b"shorter"


def test_write_mode(tree: Path) -> None:
    run("write", tree / "f", "600", "ct", stdin=b"x")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o600
    run("write", tree / "f", "-", "ct", stdin=b"x")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o600
    run("write", tree / "f", "4777", "ct", stdin=b"x")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o4777


def test_write_says_opened_before_it_reads(tree: Path) -> None:
    with Running("write", tree / "f", "-", "ct") as running:
        assert running.frame().kind == "opened"
        assert (tree / "f").read_bytes() == b""
        assert running.proc.stdin
        running.proc.stdin.write(b"abc")
        running.proc.stdin.close()
        assert running.frame().bytes == 3


def test_write_errors(tree: Path) -> None:
    (tree / "folder").mkdir()
    (tree / "file").touch()
    (tree / "loop").symlink_to("loop")
    failed(run("write", tree / "folder", "-", "ct"), errno.EISDIR, tree / "folder")
    failed(run("write", tree / "no/f", "-", "ct"), errno.ENOENT, tree / "no/f")
    failed(run("write", tree / "file/f", "-", "ct"), errno.ENOTDIR, tree / "file/f")
    failed(run("write", tree / "loop", "-", "ct"), errno.ELOOP, tree / "loop")
    failed(run("write", tree / "file", "-", "cx"), errno.EEXIST, tree / "file")
    failed(run("write", tree / "none", "-", "t"), errno.ENOENT, tree / "none")
    failed(run("write", tree / ("n" * 256), "-", "ct"), errno.ENAMETOOLONG, tree / ("n" * 256))


def test_write_to_a_running_program(tree: Path) -> None:
    program = tree / "sleep"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as proc:
        failed(run("write", program, "-", "ct"), errno.ETXTBSY, program)
        proc.kill()


@needs_root
def test_write_no_space(small: Path) -> None:
    with Running("write", small / "f", "-", "ct") as running:
        assert running.frame().kind == "opened"
        assert running.proc.stdin
        # It fails at the first byte that has no room; more would come.
        running.proc.stdin.write(bytes(64 * 1024))
        running.proc.stdin.write(b"x")
        last = running.frame()
        assert (last.kind, last.error, last.path) == ("error", errno.ENOSPC, bytes(small / "f"))
        assert running.proc.wait(10) == 1


@needs_root
def test_mounts(small: Path, tree: Path) -> None:
    (tree / "here").touch()
    failed(
        run("rename", tree / "here", small / "there"), errno.EXDEV, tree / "here", small / "there"
    )
    failed(run("remove", small, "r"), errno.EBUSY, small)
    failed(run("rename", small, tree / "other"), errno.EBUSY, small, tree / "other")
    (small / "f").touch()
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    failed(run("write", small / "f", "-", "ct"), errno.EROFS, small / "f")
    failed(run("write", small / "g", "-", "ct"), errno.EROFS, small / "g")
    failed(run("mkdir", small / "d", "755", "-"), errno.EROFS, small / "d")
    failed(run("mkdir", small / "d", "755", "r"), errno.EROFS, small / "d")
    failed(run("remove", small / "f", "f"), errno.EROFS, small / "f")
    failed(run("chmod", small / "f", "600"), errno.EROFS, small / "f")
    failed(run("chown", small / "f", "1", "1", "-"), errno.EROFS, small / "f")
    failed(run("symlink", "x", small / "l"), errno.EROFS, small / "l")
    failed(run("rename", small / "f", small / "g"), errno.EROFS, small / "f", small / "g")


# --- stat, list ----------------------------------------------------------------------------------


def test_stat(tree: Path) -> None:
    file = tree / "f"
    file.write_bytes(b"abc")
    file.chmod(0o4750)
    os.utime(file, ns=(1_000_000_000_123_456_789, -5_000_000_001))
    (tree / "l").symlink_to("f")
    entry = run("stat", tree / "l").frames[0]
    assert (entry.kind, entry.size, entry.mode) == ("entry", 3, stat.S_IFREG | 0o4750)
    assert (entry.atime_s, entry.atime_ns) == (1_000_000_000, 123_456_789)
    assert (entry.mtime_s, entry.mtime_ns) == (-6, 999_999_999)
    assert (entry.uid, entry.gid) == (os.geteuid(), os.getegid())
    assert (entry.path, entry.target) == (b"", b"")
    link = run("lstat", tree / "l").frames[0]
    assert stat.S_ISLNK(link.mode)
    assert link.target == b"f"


@pytest.mark.parametrize("operation", ["stat", "lstat"])
def test_stat_errors(tree: Path, operation: str) -> None:
    (tree / "file").touch()
    failed(run(operation, tree / "none"), errno.ENOENT, tree / "none")
    failed(run(operation, tree / "file/x"), errno.ENOTDIR, tree / "file/x")


def test_stat_of_a_link_without_a_target(tree: Path) -> None:
    (tree / "l").symlink_to("none")
    failed(run("stat", tree / "l"), errno.ENOENT, tree / "l")
    assert run("lstat", tree / "l").frames[0].target == b"none"


def test_list(tree: Path) -> None:
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/f").write_bytes(b"12345")
    (tree / "a/l").symlink_to("b")
    os.mkfifo(tree / "a/fifo")
    odd = os.fsencode(tree) + b"/a/\xff\xfe"
    os.mkdir(odd)
    names = {entry.path: entry for entry in run("list", tree, "1").of("entry")}
    assert set(names) == {b"a"}
    result = run("list", tree, "2")
    names = {entry.path: entry for entry in result.of("entry")}
    assert set(names) == {b"a", b"a/b", b"a/f", b"a/l", b"a/fifo", b"a/\xff\xfe"}
    assert names[b"a/f"].size == 5
    assert names[b"a/l"].target == b"b"
    assert result.last.count == 6
    names = {entry.path: entry for entry in run("list", tree, "255").of("entry")}
    assert b"a/b/c" in names
    assert b"a/l/c" not in names


def test_list_of_very_many(tree: Path) -> None:
    for number in range(20_000):
        (tree / f"{number:05}").touch()
    result = run("list", tree, "1")
    assert sorted(entry.path for entry in result.of("entry")) == [
        b"%05d" % n for n in range(20_000)
    ]


def test_list_follows_a_link_it_was_given(tree: Path) -> None:
    (tree / "d/e").mkdir(parents=True)
    (tree / "l").symlink_to("d")
    assert [entry.path for entry in run("list", tree / "l", "1").of("entry")] == [b"e"]


def test_list_errors(tree: Path) -> None:
    (tree / "file").touch()
    failed(run("list", tree / "none", "1"), errno.ENOENT, tree / "none")
    failed(run("list", tree / "file", "1"), errno.ENOTDIR, tree / "file")
    failed(run("list", tree, "0"), errno.EINVAL, tree)


@needs_root
def test_list_goes_on_behind_what_it_may_not_read(tree: Path) -> None:
    (tree / "private/x").mkdir(parents=True)
    (tree / "private").chmod(0o700)
    (tree / "open").mkdir()
    entries = {entry.path: entry for entry in run("list", tree, "2", user=USER).of("entry")}
    assert entries[b"private"].error == errno.EACCES
    assert entries[b"open"].error == 0
    assert b"private/x" not in entries


# --- mkdir, rename, remove, symlink, chmod, chown ------------------------------------------------


def test_mkdir(tree: Path) -> None:
    run("mkdir", tree / "d", "700", "-")
    assert stat.S_IMODE((tree / "d").stat().st_mode) == 0o700
    run("mkdir", f"{tree}//x///y/z/", "2777", "r")
    assert stat.S_IMODE((tree / "x/y").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "x/y/z").stat().st_mode) == 0o2777
    assert run("mkdir", tree / "x/y/z", "700", "r").status == 0
    assert stat.S_IMODE((tree / "x/y/z").stat().st_mode) == 0o2777
    assert run("mkdir", "/", "755", "r").status == 0
    assert run("mkdir", "p/q", "755", "r", cwd=tree).status == 0
    assert (tree / "p/q").is_dir()


def test_mkdir_errors(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "f").touch()
    (tree / "dangling").symlink_to("none")
    failed(run("mkdir", tree / "d", "755", "-"), errno.EEXIST, tree / "d")
    failed(run("mkdir", tree / "f", "755", "-"), errno.EEXIST, tree / "f")
    failed(run("mkdir", tree / "f", "755", "r"), errno.EEXIST, tree / "f")
    failed(run("mkdir", tree / "f/x", "755", "r"), errno.ENOTDIR, tree / "f")
    failed(run("mkdir", tree / "f/x", "755", "-"), errno.ENOTDIR, tree / "f/x")
    failed(run("mkdir", tree / "no/x", "755", "-"), errno.ENOENT, tree / "no/x")
    failed(run("mkdir", tree / "dangling", "755", "r"), errno.EEXIST, tree / "dangling")
    failed(run("mkdir", "", "755", "r"), errno.ENOENT, "")
    failed(run("mkdir", tree / ("n" * 256), "755", "r"), errno.ENAMETOOLONG, tree / ("n" * 256))


def test_rename(tree: Path) -> None:
    (tree / "a").write_text("a")
    (tree / "b").write_text("b")
    run("rename", tree / "a", tree / "b")
    assert (tree / "b").read_text() == "a"
    assert not (tree / "a").exists()
    (tree / "d").mkdir()
    (tree / "empty").mkdir()
    run("rename", tree / "d", tree / "empty")
    assert not (tree / "d").exists()


def test_rename_errors(tree: Path) -> None:
    (tree / "f").touch()
    (tree / "d").mkdir()
    (tree / "full/x").mkdir(parents=True)
    failed(run("rename", tree / "no", tree / "x"), errno.ENOENT, tree / "no", tree / "x")
    failed(run("rename", tree / "f", tree / "no/x"), errno.ENOENT, tree / "f", tree / "no/x")
    failed(run("rename", tree / "d", tree / "full"), errno.ENOTEMPTY, tree / "d", tree / "full")
    failed(run("rename", tree / "f", tree / "d"), errno.EISDIR, tree / "f", tree / "d")
    failed(run("rename", tree / "d", tree / "f"), errno.ENOTDIR, tree / "d", tree / "f")
    failed(run("rename", tree / "d", tree / "d/x"), errno.EINVAL, tree / "d", tree / "d/x")


def test_symlink(tree: Path) -> None:
    run("symlink", "../anywhere", tree / "l")
    assert os.readlink(tree / "l") == "../anywhere"
    failed(run("symlink", "x", tree / "l"), errno.EEXIST, tree / "l")
    failed(run("symlink", "x", tree / "no/l"), errno.ENOENT, tree / "no/l")
    failed(run("symlink", "", tree / "m"), errno.ENOENT, tree / "m")
    failed(run("symlink", "x" * 5000, tree / "m"), errno.ENAMETOOLONG, tree / "m")


@needs_root
def test_chmod_and_chown(tree: Path) -> None:
    (tree / "f").touch()
    (tree / "l").symlink_to("f")
    run("chmod", tree / "l", "6711")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o6711
    run("chown", tree / "l", "7", "-", "-")
    assert ((tree / "f").stat().st_uid, (tree / "f").stat().st_gid) == (7, 0)
    run("chown", tree / "l", "8", "4000000000", "n")
    assert ((tree / "l").lstat().st_uid, (tree / "l").lstat().st_gid) == (8, 4_000_000_000)
    assert (tree / "f").stat().st_uid == 7
    failed(run("chmod", tree / "no", "644"), errno.ENOENT, tree / "no")
    failed(run("chown", tree / "no", "1", "1", "n"), errno.ENOENT, tree / "no")


def test_remove(tree: Path) -> None:
    (tree / "f").touch()
    assert run("remove", tree / "f", "-").last.count == 1
    assert not (tree / "f").exists()
    (tree / "keep").mkdir()
    (tree / "keep/x").touch()
    (tree / "l").symlink_to("keep")
    run("remove", tree / "l", "rf")
    (tree / "l").symlink_to("keep")
    run("remove", tree / "l", "r")
    assert (tree / "keep/x").exists()
    assert run("remove", tree / "no", "f").last.count == 0
    assert run("remove", tree / "no/no", "rf").last.count == 0


def test_remove_a_tree(tree: Path) -> None:
    outside = tree / "outside"
    outside.mkdir()
    (outside / "x").touch()
    top = tree / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/link").symlink_to(outside)
    (top / "a/b/loop").symlink_to("../..")
    os.mkfifo(top / "fifo")
    for number in range(500):
        (top / f"d{number}").mkdir()
        (top / f"d{number}/f").touch()
    os.mkdir(os.fsencode(top) + b"/\xff")
    result = run("remove", top, "r")
    assert not top.exists()
    assert result.last.count == 1007
    assert (outside / "x").exists()


def test_remove_a_very_deep_tree(tree: Path) -> None:
    """Deeper than any path or number of open files."""
    top = tree / "deep"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 50, dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    result = run("remove", top, "r")
    assert (result.status, result.last.count) == (0, 6001)
    assert not top.exists()


def test_remove_errors(tree: Path) -> None:
    (tree / "d/e").mkdir(parents=True)
    (tree / "f").touch()
    (tree / "l").symlink_to("d")
    failed(run("remove", tree / "no", "-"), errno.ENOENT, tree / "no")
    failed(run("remove", tree / "no", "r"), errno.ENOENT, tree / "no")
    for flags in ("-", "f"):
        failed(run("remove", tree / "d", flags), errno.EISDIR, tree / "d")
        failed(run("remove", tree / "d/e", flags), errno.EISDIR, tree / "d/e")
    failed(run("remove", tree / "f/x", "f"), errno.ENOTDIR, tree / "f/x")
    failed(run("remove", f"{tree}/f/", "rf"), errno.ENOTDIR, tree / "f")
    failed(run("remove", f"{tree}/l/", "rf"), errno.ENOTDIR, tree / "l")
    failed(run("remove", "/", "rf"), errno.EBUSY, "/")
    failed(run("remove", "//", "rf"), errno.EBUSY, "/")
    failed(run("remove", ".", "rf", cwd=tree), errno.EINVAL, ".")
    failed(run("remove", tree / "d/..", "rf"), errno.EINVAL, tree / "d/..")
    failed(run("remove", "", "rf"), errno.ENOENT, "")
    assert (tree / "d/e").is_dir()
    assert (tree / "f").exists()


@needs_root
def test_remove_says_where_it_stopped(tree: Path) -> None:
    top = tree / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/f").touch()
    for folder in (top, top / "a"):
        os.chown(folder, USER, USER)
    failed(run("remove", top, "r", user=USER), errno.EACCES, top / "a/b")
    assert (top / "a/b/f").exists()


@needs_root
def test_remove_a_busy_mount_in_a_tree(small: Path) -> None:
    (small / "f").touch()
    top = small.parent / "top"
    (top / "m").mkdir(parents=True)
    subprocess.run(["mount", "--bind", small, top / "m"], check=True)
    try:
        result = run("remove", top, "r")
        assert (result.last.kind, result.last.error) == ("error", errno.EBUSY)
    finally:
        subprocess.run(["umount", "-l", top / "m"], check=True)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("frobnicate",),
        ("read", "/etc/passwd"),
        ("read", "/etc/passwd", "x", "-"),
        ("read", "/etc/passwd", "-", "-"),
        ("read", "/etc/passwd", "0", "99999999999999999999"),
        ("write", "/tmp/x", "888", "ct"),
        ("write", "/tmp/x", "10000", "ct"),
        ("write", "/tmp/x", "-", "cz"),
        ("list", "/", "256"),
        ("chown", "/tmp/x", "4294967295", "-", "-"),
        ("stat", "/", "/"),
    ],
)
def test_bad_arguments(args: tuple[str, ...]) -> None:
    last = run(*args).last
    assert (last.kind, last.error) == ("error", errno.EINVAL)


def test_a_socket_can_not_be_read(tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tree / "s"))
        failed(run("read", tree / "s", "0", "-"), errno.ENXIO, tree / "s")
