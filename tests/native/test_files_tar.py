# SPDX-License-Identifier: Apache-2.0
"""thaw-files' archives: what is kept, and that no archive reaches outside its folder."""

# Names that are not UTF-8 are bytes, which pathlib does not take.
# ruff: noqa: PTH102, PTH112, PTH115, PTH118, PTH208

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from thawfiles import Result, Running, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners, devices and mounts need root")

CAPABILITY = struct.pack("<IIIII", 0x2000001, 33, 0, 0, 0)
SECRET = b"do not touch"


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="thaw-tree-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def pack(folder: str | Path) -> bytes:
    result = run("tar_out", folder)
    assert result.status == 0, result.last
    assert result.last.bytes == len(result.out)
    return result.out


def unpack(folder: Path, data: bytes, flags: str = "-", user: int | None = None) -> Result:
    folder.mkdir(exist_ok=True)
    return run("tar_in", folder, flags, stdin=data, user=user)


def facts(folder: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything a tar should keep, by name."""
    found: dict[bytes, tuple[object, ...]] = {}
    top = os.fsencode(folder)
    for base, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(base, name)
            st = os.lstat(path)
            content: object = None
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(st.st_mode):
                content = os.readlink(path)
            xattrs = {
                key: os.getxattr(path, key, follow_symlinks=False)
                for key in os.listxattr(path, follow_symlinks=False)
            }
            found[os.path.relpath(path, top)] = (
                oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns, content, xattrs,
                st.st_rdev, st.st_nlink,
            )  # fmt: skip
    return found


def make_everything(top: Path) -> None:
    top.mkdir()
    (top / "file").write_bytes(os.urandom(100_000))
    os.chown(top / "file", 70_000, 3_000_000_000)
    (top / "setuid").write_bytes(b"x")
    (top / "setuid").chmod(0o4755)
    (top / "empty").touch(mode=0o000)
    (top / "hard").hardlink_to(top / "file")
    (top / "link").symlink_to("file")
    (top / "dangling").symlink_to("/nowhere/" + "x" * 3000)
    os.mkfifo(top / "fifo", 0o620)
    os.mknod(top / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(top / "disk", stat.S_IFBLK | 0o660, os.makedev(7, 99))
    (top / ("n" * 255)).write_bytes(b"long name")
    deep = top / "/".join(["d" * 100] * 12)
    deep.mkdir(parents=True)
    (deep / "leaf").write_bytes(b"deep")
    os.mkdir(os.fsencode(top) + b"/\xff\xfe not utf-8")
    (top / "äöü \U0001f600").write_text("utf-8")
    (top / "line\nbreak").write_text("odd")
    with open(top / "sparse", "wb") as file:
        file.seek(1 << 30)
        file.write(b"end")
        file.truncate((1 << 30) + 8_000_000)
    with open(top / "hole", "wb") as file:
        file.truncate(50_000_000)
    os.setxattr(top / "file", "user.note", b"\0\xff binary")
    os.setxattr(top / "file", "trusted.note", b"t")
    (top / "sticky").mkdir(mode=0o700)
    (top / "sticky/x").touch()
    (top / "sticky").chmod(0o3500)
    for name, when in (("file", (1, -5_000_000_000)), ("empty", (1, 10_413_792_000_999_999_999))):
        os.utime(top / name, ns=when)
    os.utime(top / "sticky", ns=(1, 1_234_567_890_123_456_789))


def without_sparse(facts_: dict[bytes, tuple[object, ...]]) -> dict[bytes, tuple[object, ...]]:
    return {name: value for name, value in facts_.items() if name not in (b"sparse", b"hole")}


def small_facts(top: Path) -> dict[bytes, tuple[object, ...]]:
    """facts(), with the file of a gigabyte looked at on its own."""
    sparse = top / "sparse"
    assert sparse.stat().st_size == (1 << 30) + 8_000_000
    with open(sparse, "rb") as file:
        file.seek((1 << 30) - 10)
        assert file.read(20) == bytes(10) + b"end" + bytes(7)
    kept = sparse.stat().st_blocks * 512
    assert kept < 1_000_000
    sparse.unlink()
    return facts(top)


def test_round_trip_of_everything(tree: Path) -> None:
    make_everything(tree / "a")
    data = pack(tree / "a")
    assert len(data) < 3_000_000, "holes are no zeros"
    result = unpack(tree / "b", data, "p")
    assert result.status == 0, result.last
    assert result.of("note") == []
    assert small_facts(tree / "b") == small_facts(tree / "a")


def test_other_tars_read_it(tree: Path) -> None:
    make_everything(tree / "a")
    data = pack(tree / "a")
    (tree / "gnu").mkdir()
    subprocess.run(
        ["tar", "-xpf", "-", "--xattrs", "--xattrs-include=*", "-C", tree / "gnu"],
        input=data,
        check=True,
    )
    assert small_facts(tree / "gnu") == small_facts(tree / "a")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = set(archive.getnames())
    assert {".", "./file", "./äöü \U0001f600", "./line\nbreak"} <= names


def test_it_reads_other_tars(tree: Path) -> None:
    make_everything(tree / "a")
    for number, form in enumerate(("gnu", "posix")):
        more = ["--xattrs"] if form == "posix" else []
        data = subprocess.run(
            ["tar", "-cf", "-", "-S", f"--format={form}", *more, "-C", tree / "a", "."],
            check=True, capture_output=True,
        ).stdout  # fmt: skip
        result = unpack(tree / str(number), data, "p")
        assert result.status == 0, result.last
        assert (tree / str(number) / "äöü \U0001f600").read_text() == "utf-8"
        assert os.path.isdir(os.fsencode(tree) + b"/%d/\xff\xfe not utf-8" % number)
        assert os.readlink(tree / str(number) / "dangling") == "/nowhere/" + "x" * 3000
        assert (tree / str(number) / "hard").stat().st_nlink == 2
        assert (tree / str(number) / "file").stat().st_uid == 70_000
        small_facts(tree / str(number))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_that_are_not_ascii_come_back(tree: Path, form: int) -> None:
    data = archive_of(("ä/ö", b"1"), ("ü" * 80 + "/" + "é" * 60, b"2"), form=form)
    assert unpack(tree / "t", data).status == 0
    assert (tree / "t/ä/ö").read_bytes() == b"1"
    assert (tree / "t" / ("ü" * 80) / ("é" * 60)).read_bytes() == b"2"


def test_acls_are_kept(tree: Path) -> None:
    """user::rw-, user:1000:r--, group::r--, mask::r--, other::---; and a default one."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, 4, 1000), (4, 4, nobody), (16, 4, nobody), (32, 0, nobody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    (tree / "a/d").mkdir(parents=True)
    (tree / "a/f").touch()
    os.setxattr(tree / "a/f", "system.posix_acl_access", acl)
    os.setxattr(tree / "a/d", "system.posix_acl_default", acl)
    assert unpack(tree / "b", pack(tree / "a")).of("note") == []
    assert os.getxattr(tree / "b/f", "system.posix_acl_access") == acl
    assert os.getxattr(tree / "b/d", "system.posix_acl_default") == acl


def test_plain_names_need_no_mark(tree: Path) -> None:
    """Other tars do not know hdrcharset, and say so for each entry that has it."""
    (tree / "d").mkdir()
    (tree / "d/plain").touch()
    (tree / "d/umläut").touch()
    listed = subprocess.run(
        ["tar", "-tf", "-"], input=pack(tree / "d"), check=True, capture_output=True
    )
    assert listed.stderr.count(b"hdrcharset") == 1
    data = run("tar_out", tree / "d/plain").out
    assert b"hdrcharset" not in data


def test_one_file(tree: Path) -> None:
    (tree / "f").write_text("x")
    (tree / "l").symlink_to("f")
    for name in ("f", "l"):
        with tarfile.open(fileobj=io.BytesIO(pack(tree / name))) as archive:
            (member,) = archive.getmembers()
            assert (member.name, member.type, member.size) == (name, tarfile.REGTYPE, 1)


def test_a_link_to_a_folder_is_followed_at_the_top_only(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d/x").touch()
    (tree / "d/in").symlink_to(".")
    (tree / "l").symlink_to("d")
    with tarfile.open(fileobj=io.BytesIO(pack(tree / "l"))) as archive:
        assert sorted(archive.getnames()) == [".", "./in", "./x"]


def test_sockets_are_left_out_and_told(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d/x").touch()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tree / "d/s"))
        result = run("tar_out", tree / "d")
    (note,) = result.of("note")
    assert (note.path, note.text) == (b"./s", "a socket")
    with tarfile.open(fileobj=io.BytesIO(result.out)) as archive:
        assert archive.getnames() == ["./x", "."]
        assert archive.pax_headers["comment"] == "thaw left out:\n./s: a socket"
    assert unpack(tree / "e", result.out).status == 0
    subprocess.run(["tar", "-tf", "-"], input=result.out, check=True, capture_output=True)


def test_what_can_not_be_read_is_an_error(tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d/f").write_text("x")
    (tree / "d/f").chmod(0o600)
    last = run("tar_out", tree / "d", user=1000).last
    assert (last.kind, last.error, last.path) == ("error", errno.EACCES, b"./f")
    (tree / "d/f").unlink()
    (tree / "d/g").mkdir(mode=0o700)
    last = run("tar_out", tree / "d", user=1000).last
    assert (last.kind, last.error, last.path) == ("error", errno.EACCES, b"./g")


def test_mounts_are_not_entered(tree: Path) -> None:
    (tree / "d/m").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", tree / "d/m"], check=True)
    try:
        (tree / "d/m/inside").touch()
        with tarfile.open(fileobj=io.BytesIO(pack(tree / "d"))) as archive:
            assert sorted(archive.getnames()) == [".", "./m"]
    finally:
        subprocess.run(["umount", "-l", tree / "d/m"], check=True)


def test_tar_out_errors(tree: Path) -> None:
    last = run("tar_out", tree / "none").last
    assert (last.error, last.path) == (errno.ENOENT, bytes(tree / "none"))


# --- in ------------------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def archive_of(
    *members: tuple[str | tarfile.TarInfo, bytes] | tarfile.TarInfo, form: int = tarfile.PAX_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for item in members:
            info, data = item if isinstance(item, tuple) else (item, b"")
            info = member(info) if isinstance(info, str) else info
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def link(name: str, to: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, linkname=to)


def hard(name: str, to: str) -> tarfile.TarInfo:
    return member(name, tarfile.LNKTYPE, linkname=to)


def hard_with_data(name: str, to: str, data: bytes) -> bytes:
    """tarfile writes none with content: a file's header, made a link's by hand."""
    raw = bytearray(archive_of((member(name, linkname=to), data), form=tarfile.USTAR_FORMAT))
    raw[156:157] = b"1"
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw)


# What storage people found archives to try: OUT is a folder beside the target.
ATTACKS: dict[str, Callable[[str], bytes]] = {
    "dotdot": lambda out: archive_of(("../evil", b"x")),
    "dotdot inside": lambda out: archive_of(("a/../../evil", b"x")),
    "dotdot at the end": lambda out: archive_of(member("a/..", tarfile.DIRTYPE, mode=0o777)),
    "absolute": lambda out: archive_of((f"{out}/evil", b"x")),
    "absolute, two slashes": lambda out: archive_of((f"/{out}/evil", b"x")),
    "link, then through it, absolute": lambda out: archive_of(link("l", out), ("l/evil", b"x")),
    "link, then through it, relative": lambda out: archive_of(
        link("l", "../out"), ("l/evil", b"x")
    ),
    "chain of links": lambda out: archive_of(
        member("d", tarfile.DIRTYPE), link("d/up", ".."), link("l", "d/up/../out"), ("l/evil", b"x")
    ),
    "link to the root, then through it": lambda out: archive_of(
        link("l", "/"), (f"l{out}/evil", b"x")
    ),
    "a link that was there": lambda out: archive_of(("before/evil", b"x")),
    "a folder through a link that was there": lambda out: archive_of(
        member("before/evil", tarfile.DIRTYPE)
    ),
    "link to a file, then the file": lambda out: archive_of(
        link("f", f"{out}/secret"), ("f", b"overwritten")
    ),
    "file over a link that was there": lambda out: archive_of(("before-file", b"overwritten")),
    "hard link to absolute": lambda out: archive_of(hard("h", f"{out}/secret")),
    "hard link to dotdot": lambda out: archive_of(hard("h", "../out/secret")),
    "hard link through a link": lambda out: archive_of(link("l", out), hard("h", "l/secret")),
    "hard link through a link that was there": lambda out: archive_of(hard("h", "before/secret")),
    "hard link to a link, then a file over it": lambda out: archive_of(
        link("l", f"{out}/secret"), hard("h", "l"), ("h", b"overwritten")
    ),
    "hard link with content": lambda out: hard_with_data("h", "../out/secret", b"overwritten"),
    "hard link with content to a link": lambda out: archive_of(link("l", f"{out}/secret"))[:512]
    + hard_with_data("h", "l", b"overwritten"),
    "hard link with content to one that was there": lambda out: hard_with_data(
        "h", "before-file", b"overwritten"
    ),
    "folder over a link": lambda out: archive_of(
        link("l", out), member("l", tarfile.DIRTYPE, mode=0o777, uid=1000)
    ),
    "folder over a link that was there": lambda out: archive_of(
        member("before", tarfile.DIRTYPE, mode=0o777, uid=1000)
    ),
    "the folder itself": lambda out: archive_of(
        member("./", tarfile.DIRTYPE, mode=0o777, uid=1000)
    ),
    "the same name again": lambda out: archive_of(
        ("f", b"1"), link("f", f"{out}/secret"), ("f", b"overwritten")
    ),
    "empty name": lambda out: archive_of(("", b"x")),
    "very long name": lambda out: archive_of(("n/" * 3000 + "f", b"x")),
    "a component that is too long": lambda out: archive_of(("n" * 3000, b"x")),
    "devices": lambda out: archive_of(
        member("c", tarfile.CHRTYPE, devmajor=1, devminor=1, mode=0o666),
        member("b", tarfile.BLKTYPE, devmajor=254, devminor=0, mode=0o666),
    ),
    "set-user-id": lambda out: archive_of((member("s", mode=0o6755), b"x")),
    "capability": lambda out: archive_of(
        (
            member(
                "s",
                pax_headers={
                    "SCHILY.xattr.security.capability": CAPABILITY.decode("latin-1"),
                    "SCHILY.xattr.trusted.overlay.opaque": "y",
                    "SCHILY.xattr.user.fine": "y",
                },
            ),
            b"x",
        )
    ),
}  # fmt: skip
REFUSED = {
    name for name in ATTACKS if any(word in name for word in ("through", "dotdot", "absolute"))
} | {
    "chain of links", "a link that was there", "empty name", "a component that is too long",
    "hard link with content",
}  # fmt: skip


@pytest.mark.parametrize("user", [None, 1000])
@pytest.mark.parametrize("name", ATTACKS)
def test_attacks(tree: Path, name: str, user: int | None) -> None:
    out, target = tree / "out", tree / "target"
    out.mkdir()
    target.mkdir(mode=0o700)
    (out / "secret").write_bytes(SECRET)
    (target / "before").symlink_to(out)
    (target / "before-file").symlink_to(out / "secret")
    if user is not None:
        # The worst case: nothing but thaw-files keeps it from there.
        for path in (out, out / "secret", target):
            os.chown(path, user, user)
    before = {path: (path.stat().st_mode, path.stat().st_uid) for path in (tree, out, target)}
    result = unpack(target, ATTACKS[name](str(out)), user=user)
    assert sorted(os.listdir(tree)) == ["out", "target"]
    assert os.listdir(out) == ["secret"]
    assert (out / "secret").read_bytes() == SECRET
    assert (out / "secret").stat().st_nlink == 1
    for path, was in before.items():
        assert (path.stat().st_mode, path.stat().st_uid) == was
    if name != "hard link with content to one that was there" or user is None:
        # The kernel may refuse a user to link to links that are not its own.
        assert (result.last.kind == "error") == (name in REFUSED), result.last
    if name == "very long name":
        # Deeper than os.walk() goes, or pytest when it cleans up.
        subprocess.run(["rm", "-rf", target], check=True)
        return
    for base, _folders, files in os.walk(target):
        for file in files:
            st = os.lstat(os.path.join(base, file))
            assert not stat.S_ISCHR(st.st_mode) and not stat.S_ISBLK(st.st_mode)
            assert not st.st_mode & 0o6000
            assert not set(os.listxattr(os.path.join(base, file), follow_symlinks=False)) - {
                "user.fine"
            }


@pytest.mark.parametrize(
    ("name", "text"),
    [("devices", "a device"), ("set-user-id", "set-user-id"), ("capability", "attributes")],
)
def test_what_is_dropped_is_told(tree: Path, name: str, text: str) -> None:
    data = ATTACKS[name](str(tree))
    result = unpack(tree / "t", data)
    assert result.status == 0
    assert result.of("note")
    assert all(text in note.text for note in result.of("note"))
    result = unpack(tree / "p", data, "p")
    assert (result.status, result.of("note")) == (0, [])
    if name == "set-user-id":
        assert (tree / "p/s").stat().st_mode & 0o6000 == 0o6000
    elif name == "devices":
        assert stat.S_ISBLK((tree / "p/b").stat().st_mode)
    else:
        assert "trusted.overlay.opaque" in os.listxattr(tree / "p/s")


def test_a_user_owns_what_it_extracts(tree: Path) -> None:
    (tree / "t").mkdir()
    os.chown(tree / "t", 1000, 1000)
    result = unpack(tree / "t", archive_of((member("f", uid=5, gid=5), b"x")), user=1000)
    assert result.status == 0
    assert (tree / "t/f").stat().st_uid == 1000


def test_files_are_replaced_and_folders_stay(tree: Path) -> None:
    (tree / "t/d").mkdir(parents=True)
    (tree / "t/d/keep").touch()
    (tree / "t/f").write_bytes(b"old")
    data = archive_of(member("d", tarfile.DIRTYPE), ("d/new", b"n"), ("f", b"new"))
    assert unpack(tree / "t", data).status == 0
    assert (tree / "t/f").read_bytes() == b"new"
    assert sorted(os.listdir(tree / "t/d")) == ["keep", "new"]


def test_empty_archives(tree: Path) -> None:
    assert unpack(tree / "t", bytes(10_240)).last.count == 0
    assert unpack(tree / "t", bytes(1024)).last.count == 0
    assert unpack(tree / "t", b"").last.count == 0


def test_padding_behind_the_end_is_taken(tree: Path) -> None:
    data = archive_of(("f", b"x")) + bytes(3_000_000)
    with Running("tar_in", tree, "-") as running:
        assert running.frame().kind == "opened"
        assert running.proc.stdin
        running.proc.stdin.write(data)
        running.proc.stdin.close()
        assert running.frame().kind == "done"


@pytest.mark.parametrize("junk", [b"x" * 100, b"x" * 5000, b"\x1f\x8b\x08" + bytes(600)])
def test_what_is_no_archive_is_refused(tree: Path, junk: bytes) -> None:
    last = unpack(tree / "t", junk).last
    assert (last.kind, last.error) == ("error", errno.EILSEQ)


def test_half_an_archive_is_refused(tree: Path) -> None:
    data = archive_of(("a", b"1" * 5000), ("b", b"2" * 5000))
    last = unpack(tree / "t", data[: len(data) // 2]).last
    assert (last.kind, last.error) == ("error", errno.EILSEQ)
    assert "runcated" in last.text


def test_no_space(tree: Path) -> None:
    target = tree / "t"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", target], check=True)
    try:
        last = unpack(target, archive_of(("big", bytes(range(256)) * 1000))).last
        assert (last.kind, last.error, last.path) == ("error", errno.ENOSPC, b"big")
    finally:
        subprocess.run(["umount", "-l", target], check=True)


def test_tar_in_errors(tree: Path) -> None:
    (tree / "f").touch()
    assert run("tar_in", tree / "none", "-").last.error == errno.ENOENT
    assert run("tar_in", tree / "f", "-").last.error == errno.ENOTDIR


def test_nothing_outside_can_be_reached_at_all(tree: Path) -> None:
    """The last wall, alone: somebody in the sandbox swaps folders for links while it extracts."""
    out, target = tree / "out", tree / "target"
    out.mkdir()
    (target / "d").mkdir(parents=True)
    with Running("tar_in", target, "-") as running:
        assert running.frame().kind == "opened"
        pid = running.proc.pid
        assert os.readlink(f"/proc/{pid}/root") == str(target)
        assert os.readlink(f"/proc/{pid}/cwd") == str(target)
        fds = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert not any(path.startswith(str(tree)) and path != str(target) for path in fds)
