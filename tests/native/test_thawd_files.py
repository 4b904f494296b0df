# SPDX-License-Identifier: Apache-2.0
"""Files through thawd's API: a real shim and a real thaw-files behind it, no guest.

The files are this machine's own, in a folder of the test's. Every answer is held to
docs/openapi.yaml by the client.
"""

# Names that are not UTF-8 are bytes, which pathlib does not take.
# ruff: noqa: PTH102, PTH115, PTH119, PTH211

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from api_client import Answer, Stream
from daemon import Thawd, eventually, fresh_thawd, needs_thawd, remove_thawd
from thawfiles import FILES

pytestmark = [
    *needs_thawd,
    pytest.mark.skipif(not Path(FILES).exists(), reason=f"{FILES} is not built"),
]

MIB = 1 << 20


class Box:
    """A sandbox `a` and the calls for its files."""

    def __init__(self, thawd: Thawd) -> None:
        self.thawd = thawd
        self.api = thawd.api

    def target(self, what: str = "", **query: str | bytes | Path | int) -> str:
        values = {
            key: os.fsencode(str(v)) if not isinstance(v, bytes) else v for key, v in query.items()
        }
        tail = "?" + urlencode(values, quote_via=quote) if values else ""
        return f"/v1/sandboxes/a/files{what}{tail}"

    def get(self, what: str = "", **query: str | bytes | Path | int) -> Answer:
        return self.api.call("GET", self.target(what, **query))

    def put(
        self, body: bytes | Iterator[bytes], what: str = "", **query: str | Path | int
    ) -> Answer:
        return self.api.call("PUT", self.target(what, **query), body=body)

    def post(self, what: str, **body: object) -> Answer:
        return self.api.call("POST", self.target(f"/{what}"), body)

    def watch(self, **query: str | Path | int) -> Stream:
        return self.api.stream("GET", self.target("/watch", **query))

    def audit(self) -> list[dict[str, object]]:
        """Lines about files."""
        path = self.thawd.state / "audit.log"
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [line for line in lines if str(line["action"]).startswith("files.")]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A file system of 1 MiB; mounted before the machine starts, which has mounts of its own."""
    folder = Path(tempfile.mkdtemp(prefix="thaw-files.", dir="/tmp"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


@pytest.fixture(scope="module")
def box(disk: Path) -> Iterator[Box]:
    assert disk.is_mount()
    made = fresh_thawd()
    try:
        made.start(f"audit_log = {made.state}/audit.log")
        made.create("a")
        yield Box(made)
    finally:
        remove_thawd(made)


@pytest.fixture
def tree() -> Iterator[Path]:
    """A folder that any user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="thaw-files.", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def running() -> list[int]:
    """Processes of thaw-files, whoever started them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cmdline").read_bytes().startswith(b"thaw-files\0"):
                found.append(int(path.name))
    return found


def working_on(path: Path) -> list[int]:
    """Those that have something of @path in their arguments."""
    found = []
    for pid in running():
        with contextlib.suppress(OSError):
            if os.fsencode(path) in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def failed(answer: Answer, status: int, errno: str, operation: str, path: object) -> None:
    assert (answer.status, answer.code) == (status, "file_error"), answer.body
    details = answer.json["error"]["details"]
    assert (details["errno"], details["operation"]) == (errno, operation)
    assert details["path"] == str(path)
    assert answer.json["error"]["message"].startswith(f"{operation} '{path}"[:200])


# --- read ----------------------------------------------------------------------------------------


def test_read(box: Box, tree: Path) -> None:
    data = os.urandom(1_000_000)
    (tree / "f").write_bytes(data)
    os.utime(tree / "f", (1_000_000_000, 1_000_000_000))
    answer = box.get(path=tree / "f")
    assert (answer.status, answer.body) == (200, data)
    assert answer.headers["content-length"] == "1000000"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["last-modified"] == "Sun, 09 Sep 2001 01:46:40 GMT"


def test_read_an_empty_file(box: Box, tree: Path) -> None:
    (tree / "f").touch()
    answer = box.get(path=tree / "f")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


def test_read_what_has_no_size(box: Box) -> None:
    answer = box.get(path="/proc/self/status")
    assert answer.status == 200
    assert b"thaw-files" in answer.body
    assert "content-length" not in answer.headers


@pytest.mark.parametrize(
    ("spec", "want", "where"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=8-", b"89", "bytes 8-9/10"),
        ("bytes=3-100", b"3456789", "bytes 3-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-100", b"0123456789", "bytes 0-9/10"),
        ("bytes=9-99999999999999999999999", b"9", "bytes 9-9/10"),
    ],
)
def test_ranges(box: Box, tree: Path, spec: str, want: bytes, where: str) -> None:
    (tree / "f").write_bytes(b"0123456789")
    answer = box.api.call("GET", box.target(path=tree / "f"), headers={"Range": spec})
    assert (answer.status, answer.body) == (206, want)
    assert answer.headers["content-range"] == where
    assert answer.headers["content-length"] == str(len(want))


@pytest.mark.parametrize(
    "spec", ["bytes=10-", "bytes=99-100", "bytes=-0", "bytes=99999999999999999999999-"]
)
def test_ranges_behind_the_end(box: Box, tree: Path, spec: str) -> None:
    (tree / "f").write_bytes(b"0123456789")
    answer = box.api.call("GET", box.target(path=tree / "f"), headers={"Range": spec})
    assert (answer.status, answer.code) == (416, "invalid_request")
    assert answer.headers["content-range"] == "bytes */10"


@pytest.mark.parametrize(
    "spec", ["bytes=3-1", "bytes=0-1,4-5", "bytes=", "bytes=x-", "lines=1-2", "bytes=1-2x", "-"]
)
def test_what_is_no_range_is_ignored(box: Box, tree: Path, spec: str) -> None:
    (tree / "f").write_bytes(b"0123456789")
    answer = box.api.call("GET", box.target(path=tree / "f"), headers={"Range": spec})
    assert (answer.status, answer.body) == (200, b"0123456789")


def test_head(box: Box, tree: Path) -> None:
    (tree / "f").write_bytes(b"0123456789")
    answer = box.api.call("HEAD", box.target(path=tree / "f"), check=False)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "10")
    answer = box.api.call("HEAD", box.target(path=tree / "none"), check=False)
    assert (answer.status, answer.body) == (404, b"")
    assert eventually(lambda: not working_on(tree))


def test_read_errors(box: Box, tree: Path) -> None:
    (tree / "secret").write_text("x")
    (tree / "secret").chmod(0o600)
    (tree / "loop").symlink_to("loop")
    failed(box.get(path=tree / "none"), 404, "ENOENT", "read", tree / "none")
    failed(box.get(path=tree), 409, "EISDIR", "read", tree)
    failed(box.get(path=tree / "secret/x"), 409, "ENOTDIR", "read", tree / "secret/x")
    failed(box.get(path=tree / "loop"), 400, "ELOOP", "read", tree / "loop")
    failed(box.get(path=tree / ("n" * 300)), 400, "ENAMETOOLONG", "read", tree / ("n" * 300))
    answer = box.get(path="/" + "n" * 7000)
    assert (answer.status, answer.json["error"]["details"]["errno"]) == (400, "ENAMETOOLONG")
    failed(box.get(path=tree / "secret", user="1000:1000"), 403, "EACCES", "read", tree / "secret")


def test_relative_paths(box: Box, tree: Path) -> None:
    (tree / "d").mkdir()
    (tree / "d/f").write_bytes(b"x")
    assert box.get(path="d/f", cwd=tree).body == b"x"
    assert box.get(path="etc/passwd").status == 200
    failed(box.get(path="d/f", cwd=tree / "none"), 404, "ENOENT", "read", "d/f")


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"path": ""},
        {"path": "/etc/passwd", "user": "root"},
        {"path": "/etc/passwd", "user": "1000"},
        {"path": "/etc/passwd", "user": "0:4294967295"},
        {"path": "/etc/passwd", "user": "-1:0"},
        {"path": "f", "cwd": "relative"},
    ],
)
def test_bad_queries(box: Box, query: dict[str, str]) -> None:
    answer = box.get(**query)
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_unknown_parameters_are_refused(box: Box) -> None:
    answer = box.get(path="/etc/passwd", colour="red")
    assert (answer.status, answer.code) == (400, "unknown_field")
    answer = box.post("mkdir", path="/tmp/x", colour="red")
    assert (answer.status, answer.code) == (400, "unknown_field")


def test_no_such_sandbox(box: Box) -> None:
    answer = box.api.call("GET", "/v1/sandboxes/none/files?path=/etc/passwd")
    assert (answer.status, answer.code) == (404, "not_found")


# --- write ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65_536, 120_000, 3_000_001])
def test_write(box: Box, tree: Path, size: int) -> None:
    data = os.urandom(size)
    answer = box.put(data, path=tree / "f")
    assert (answer.status, answer.json) == (200, {"size_bytes": size})
    assert (tree / "f").read_bytes() == data
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o644


def test_write_chunked(box: Box, tree: Path) -> None:
    pieces = [os.urandom(size) for size in (1, 100_000, 7, 300_000)]
    assert box.put(iter(pieces), path=tree / "f").json == {"size_bytes": 400_008}
    assert (tree / "f").read_bytes() == b"".join(pieces)


def test_write_append_mode_user(box: Box, tree: Path) -> None:
    tree.chmod(0o777)
    box.put(b"one", path=tree / "f", mode="600", user="1000:1001")
    box.put(b"two", path=tree / "f", append=1)
    assert (tree / "f").read_bytes() == b"onetwo"
    found = (tree / "f").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o600, 1000, 1001)
    box.put(b"", path=tree / "f", mode="0755")
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o755
    for mode in ("", "8", "rwx", "17777", "077777"):
        assert box.put(b"", path=tree / "f", mode=mode).code == "invalid_request"


def test_write_errors(box: Box, tree: Path) -> None:
    (tree / "d").mkdir()
    failed(box.put(b"x", path=tree / "d"), 409, "EISDIR", "write", tree / "d")
    failed(box.put(b"x", path=tree / "no/f"), 404, "ENOENT", "write", tree / "no/f")
    failed(box.put(b"x", path=tree / "f", user="1:1"), 403, "EACCES", "write", tree / "f")


def test_write_no_space(box: Box, disk: Path) -> None:
    failed(box.put(bytes(3 * MIB), path=disk / "f"), 507, "ENOSPC", "write", disk / "f")
    assert eventually(lambda: not working_on(disk))


def raw(box: Box) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(box.thawd.socket)
    return sock


def test_an_upload_that_breaks_off_leaves_a_part(box: Box, tree: Path) -> None:
    with raw(box) as sock:
        head = (
            f"PUT {box.target(path=tree / 'f')} HTTP/1.1\r\nHost: a\r\n"
            "Content-Length: 1000000\r\n\r\n"
        )
        sock.sendall(head.encode() + bytes(100_000))
        assert eventually(lambda: (tree / "f").exists() and (tree / "f").stat().st_size == 100_000)
        assert working_on(tree / "f")
    assert eventually(lambda: not working_on(tree / "f"))
    assert (tree / "f").stat().st_size == 100_000
    assert eventually(
        lambda: any(
            line["details"].get("path") == str(tree / "f") and line["result"] == "client_left"
            for line in box.audit()
        )
    )


def test_a_refused_upload_is_answered_before_its_body(box: Box, tree: Path) -> None:
    with raw(box) as sock:
        head = (
            f"PUT {box.target(path=tree)} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n"
            "Expect: 100-continue\r\n\r\n"
        )
        sock.sendall(head.encode())
        assert b" 409 " in sock.recv(65536).split(b"\r\n")[0]


def test_an_error_is_told_to_a_client_that_stalls(box: Box, disk: Path) -> None:
    """The guest's error does not wait for the client's next byte; nor the answer for its last."""
    with raw(box) as sock:
        head = (
            f"PUT {box.target(path=disk / 'g')} HTTP/1.1\r\nHost: a\r\n"
            "Content-Length: 900000000\r\n\r\n"
        )
        sock.sendall(head.encode() + bytes(MIB + 100))
        assert b" 507 " in sock.recv(65536).split(b"\r\n")[0]
        assert eventually(lambda: not working_on(disk / "g"))
    (disk / "g").unlink()


# --- flow ----------------------------------------------------------------------------------------


def test_a_reader_that_leaves_ends_the_guest_s_program(box: Box, tree: Path) -> None:
    os.symlink("/dev/zero", tree / "endless")
    stream = box.api.stream("GET", box.target(path=tree / "endless"))
    assert stream.read(MIB) == bytes(MIB)
    assert working_on(tree / "endless")
    stream.close()
    assert eventually(lambda: not working_on(tree / "endless"))


def test_a_reader_that_stalls_holds_up_nobody(box: Box, tree: Path) -> None:
    os.symlink("/dev/zero", tree / "endless")
    streams = [box.api.stream("GET", box.target(path=tree / "endless")) for _ in range(8)]
    (tree / "f").write_bytes(b"x")
    assert box.get(path=tree / "f").body == b"x"
    for stream in streams:
        stream.close()
    assert eventually(lambda: not working_on(tree / "endless"))


def rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Peaks(threading.Thread):
    """The largest memory of each program while it runs."""

    def __init__(self, thawd: Thawd) -> None:
        super().__init__()
        self.names = {"thawd": 0, "thaw-shim": 0, "thaw-files": 0}
        self.thawd_pid = thawd.pid
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.02):
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    word = os.path.basename(
                        (path / "cmdline").read_bytes().split(b"\0")[0]
                    ).decode()
                    if word in self.names and (word != "thawd" or int(path.name) == self.thawd_pid):
                        self.names[word] = max(self.names[word], rss_kib(int(path.name)))


def pass_through(box: Box, tree: Path, size: int) -> dict[str, int]:
    """@size bytes in and out again. Return: KiB of memory, by program."""
    block = os.urandom(MIB)
    digest = hashlib.blake2b()

    def body() -> Iterator[bytes]:
        for number in range(size // MIB):
            piece = number.to_bytes(8, "little") + block[8:]
            digest.update(piece)
            yield piece

    reset_peak(box.thawd.pid)
    peaks = Peaks(box.thawd)
    peaks.start()
    answer = box.put(body(), path=tree / "big")
    assert answer.json == {"size_bytes": size}
    back, got_bytes = hashlib.blake2b(), 0
    with box.api.stream("GET", box.target(path=tree / "big")) as stream:
        while piece := stream.read(MIB):
            back.update(piece)
            got_bytes += len(piece)
    peaks.stop.set()
    peaks.join()
    assert got_bytes == size
    assert back.digest() == digest.digest()
    return peaks.names


def test_256_mib_pass_with_flat_memory(box: Box, tree: Path) -> None:
    kib = pass_through(box, tree, 256 * MIB)
    assert all(kib.values()), kib
    assert all(value < 32 * 1024 for value in kib.values()), kib


@pytest.mark.skipif("THAW_TEST_LARGE" not in os.environ, reason="5 GiB: THAW_TEST_LARGE=1 runs it")
def test_5_gib_pass_with_flat_memory(box: Box, tree: Path) -> None:
    kib = pass_through(box, tree, 5 << 30)
    print("KiB at most:", kib)
    assert all(value < 32 * 1024 for value in kib.values()), kib


# --- stat, list ----------------------------------------------------------------------------------


def test_stat(box: Box, tree: Path) -> None:
    (tree / "f").write_bytes(b"abc")
    (tree / "f").chmod(0o4750)
    os.utime(tree / "f", ns=(1_000_000_000_123_456_789, -1_500_000_000))
    (tree / "l").symlink_to("f")
    found = box.get("/stat", path=tree / "l").json
    assert found["type"] == "file"
    assert found["mode"] == 0o4750
    assert (found["size_bytes"], found["uid"], found["gid"]) == (3, 0, 0)
    assert found["atime"] == "2001-09-09T01:46:40.123456789Z"
    assert found["mtime"] == "1969-12-31T23:59:58.500000000Z"
    link = box.get("/stat", path=tree / "l", follow=0).json
    assert (link["type"], link["target"]) == ("symlink", "f")
    failed(box.get("/stat", path=tree / "no"), 404, "ENOENT", "stat", tree / "no")
    failed(box.get("/stat", path=tree / "no", follow=0), 404, "ENOENT", "lstat", tree / "no")
    assert box.get("/stat", path=tree, follow=2).code == "invalid_request"


def test_list(box: Box, tree: Path) -> None:
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/f").write_bytes(b"12345")
    (tree / "a/l").symlink_to("/nowhere")
    os.mkfifo(tree / "a/p")
    entries = {e["path"]: e for e in box.get("/list", path=tree, depth=2).json["entries"]}
    assert {path: e["type"] for path, e in entries.items()} == {
        "a": "directory", "a/b": "directory", "a/f": "file", "a/l": "symlink", "a/p": "fifo",
    }  # fmt: skip
    assert entries["a/f"]["name"] == "f"
    assert entries["a/f"]["size_bytes"] == 5
    assert entries["a/l"]["target"] == "/nowhere"
    assert [e["path"] for e in box.get("/list", path=tree).json["entries"]] == ["a"]
    assert box.get("/list", path=tree / "a/b").json == {"entries": []}
    failed(box.get("/list", path=tree / "a/f"), 409, "ENOTDIR", "list", tree / "a/f")
    failed(box.get("/list", path=tree / "no"), 404, "ENOENT", "list", tree / "no")
    assert box.get("/list", path=tree, depth=0).code == "invalid_request"


def test_list_tells_what_it_could_not_enter(box: Box, tree: Path) -> None:
    (tree / "private").mkdir(mode=0o700)
    (entry,) = box.get("/list", path=tree, depth=2, user="1:1").json["entries"]
    assert entry["error"] == "EACCES"


def test_list_of_very_many(box: Box, tree: Path) -> None:
    for number in range(5_000):
        (tree / f"{number:0200}").touch()
    entries = box.get("/list", path=tree).json["entries"]
    assert sorted(e["name"] for e in entries) == [f"{n:0200}" for n in range(5_000)]


def test_names_that_are_not_utf8(box: Box, tree: Path) -> None:
    odd = os.fsencode(tree) + b"/\xff\xfe"
    os.mkdir(odd)
    (entry,) = box.get("/list", path=tree).json["entries"]
    assert base64.b64decode(entry["name_b64"]) == b"\xff\xfe"
    assert "name" not in entry
    assert box.get("/stat", path=odd).json["type"] == "directory"
    os.symlink(b"\xfe", odd + b"/l")
    found = box.get("/stat", path=odd + b"/l", follow=0).json
    assert base64.b64decode(found["target_b64"]) == b"\xfe"
    answer = box.get("/stat", path=odd + b"/no")
    assert base64.b64decode(answer.json["error"]["details"]["path_b64"]) == odd + b"/no"
    b64 = base64.b64encode(odd).decode()
    assert box.post("remove", path_b64=b64, recursive=True).status == 204
    assert list(tree.iterdir()) == []


# --- changes -------------------------------------------------------------------------------------


def test_changes(box: Box, tree: Path) -> None:
    assert box.post("mkdir", path=str(tree / "a"), mode=0o700).status == 204
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0o700
    assert box.post("mkdir", path="b/c/d", cwd=str(tree), recursive=True).status == 204
    assert (tree / "b/c/d").is_dir()
    assert box.post("symlink", target="../x", path=str(tree / "l")).status == 204
    assert os.readlink(tree / "l") == "../x"
    (tree / "f").touch()
    assert box.post("chmod", path=str(tree / "f"), mode="0640").status == 204
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o640
    assert box.post("chmod", path=str(tree / "f"), mode=0o600).status == 204
    assert stat.S_IMODE((tree / "f").stat().st_mode) == 0o600
    assert box.post("chown", path=str(tree / "f"), uid=1, gid=2).status == 204
    assert box.post("chown", path=str(tree / "f"), uid=3).status == 204
    assert ((tree / "f").stat().st_uid, (tree / "f").stat().st_gid) == (3, 2)
    assert box.post("chown", path=str(tree / "l"), uid=4, follow=False).status == 204
    assert (tree / "l").lstat().st_uid == 4
    assert box.post("rename", **{"from": "f", "to": "g", "cwd": str(tree)}).status == 204
    assert (tree / "g").exists()
    assert box.post("remove", path=str(tree / "b"), recursive=True).status == 204
    assert not (tree / "b").exists()
    assert box.post("remove", path=str(tree / "b"), force=True).status == 204


def test_errors_of_changes(box: Box, tree: Path) -> None:
    (tree / "d/e").mkdir(parents=True)
    (tree / "f").touch()
    d, f = str(tree / "d"), str(tree / "f")
    failed(box.post("mkdir", path=d), 409, "EEXIST", "mkdir", d)
    failed(box.post("remove", path=d, force=True), 409, "EISDIR", "remove", d)
    failed(box.post("remove", path=f + "x"), 404, "ENOENT", "remove", f + "x")
    failed(box.post("remove", path="/", recursive=True), 409, "EBUSY", "remove", "/")
    failed(box.post("chmod", path=f, mode=0o600, user="1:1"), 403, "EPERM", "chmod", f)
    failed(box.post("symlink", target="x", path=f), 409, "EEXIST", "symlink", f)
    answer = box.post("rename", **{"from": f, "to": d})
    failed(answer, 409, "EISDIR", "rename", f)
    assert answer.json["error"]["details"]["destination"] == d
    (tree / "full/x").mkdir(parents=True)
    answer = box.post("rename", **{"from": d, "to": str(tree / "full")})
    failed(answer, 409, "ENOTEMPTY", "rename", d)


def test_other_file_systems(box: Box, disk: Path, tree: Path) -> None:
    (tree / "f").touch()
    answer = box.post("rename", **{"from": str(tree / "f"), "to": str(disk / "f")})
    failed(answer, 409, "EXDEV", "rename", tree / "f")
    failed(box.post("remove", path=str(disk), recursive=True), 409, "EBUSY", "remove", disk)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    failed(box.put(b"x", path=disk / "f"), 403, "EROFS", "write", disk / "f")


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("mkdir", {}),
        ("mkdir", {"path": 1}),
        ("mkdir", {"path": ""}),
        ("mkdir", {"path": "x", "cwd": "y"}),
        ("mkdir", {"path": "x", "path_b64": "eA=="}),
        ("mkdir", {"path_b64": "!"}),
        ("mkdir", {"path_b64": "eAB5"}),
        ("mkdir", {"path": "/x", "recursive": 1}),
        ("mkdir", {"path": "/x", "mode": 4096}),
        ("mkdir", {"path": "/x", "mode": "9"}),
        ("mkdir", {"path": "/x", "user": 0}),
        ("chmod", {"path": "/x"}),
        ("chown", {"path": "/x", "uid": -1}),
        ("chown", {"path": "/x", "uid": 4294967295}),
        ("rename", {"from": "/x"}),
        ("symlink", {"path": "/x"}),
    ],
)
def test_bad_bodies(box: Box, what: str, body: dict[str, object]) -> None:
    answer = box.post(what, **body)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer.body


# --- tar -----------------------------------------------------------------------------------------


def test_tar(box: Box, tree: Path) -> None:
    (tree / "a/d").mkdir(parents=True)
    (tree / "a/d/f").write_bytes(os.urandom(300_000))
    (tree / "a/l").symlink_to("d/f")
    answer = box.get("/tar", path=tree / "a")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        assert sorted(archive.getnames()) == [".", "./d", "./d/f", "./l"]
    (tree / "b").mkdir()
    told = box.put(answer.body, "/tar", path=tree / "b").json
    assert told == {"entries": 3, "size_bytes": 300_000, "warnings": [], "warnings_total": 0}
    assert (tree / "b/d/f").read_bytes() == (tree / "a/d/f").read_bytes()
    assert os.readlink(tree / "b/l") == "d/f"
    failed(box.get("/tar", path=tree / "no"), 404, "ENOENT", "tar_out", tree / "no")
    failed(box.put(b"", "/tar", path=tree / "no"), 404, "ENOENT", "tar_in", tree / "no")
    failed(box.put(b"junk" * 500, "/tar", path=tree / "b"), 400, "EILSEQ", "tar_in", tree / "b")


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_hostile_tar(box: Box, tree: Path) -> None:
    (tree / "t").mkdir()
    answer = box.put(archive_of((tarfile.TarInfo("../evil"), b"x")), "/tar", path=tree / "t")
    failed(answer, 400, "EINVAL", "tar_in", "../evil")
    assert not (tree / "evil").exists()


def test_tar_tells_what_it_dropped(box: Box, tree: Path) -> None:
    (tree / "t").mkdir()
    info = tarfile.TarInfo("s")
    info.mode = 0o4755
    told = box.put(archive_of((info, b"x")), "/tar", path=tree / "t").json
    assert told["warnings_total"] == 1
    assert told["warnings"][0]["path"] == "s"
    assert "set-user-id" in told["warnings"][0]["text"]
    assert (
        box.put(archive_of((info, b"x")), "/tar", path=tree / "t", privileged=1).json["warnings"]
        == []
    )
    assert (tree / "t/s").stat().st_mode & stat.S_ISUID


def test_a_tar_that_can_not_be_completed_does_not_look_whole(box: Box, tree: Path) -> None:
    """What fails after the head: the body breaks off."""
    (tree / "d").mkdir()
    (tree / "d/a").write_bytes(os.urandom(500_000))
    (tree / "d/b").write_bytes(b"x")
    (tree / "d/b").chmod(0o600)
    with pytest.raises((OSError, Exception)) as caught:
        box.get("/tar", path=tree / "d", user="1000:1000")
    assert "IncompleteRead" in repr(caught.value) or isinstance(caught.value, OSError)


# --- watch ---------------------------------------------------------------------------------------


def test_watch(box: Box, tree: Path) -> None:
    with box.watch(path=tree, recursive=1) as stream:
        events = stream.events()
        assert next(events).name == "ready"
        (tree / "d").mkdir()
        event = next(events)
        assert (event.name, event.data) == ("create", {"path": "d", "directory": True})
        (tree / "d/f").touch()
        assert next(events).data["path"] == "d/f"
        (tree / "d/f").rename(tree / "g")
        for event in events:
            if event.name == "move":
                break
        assert event.data == {"path": "g", "from": "d/f", "directory": False}
        assert working_on(tree)
    assert eventually(lambda: not working_on(tree))


def test_watch_ends_with_what_is_watched(box: Box, tree: Path) -> None:
    (tree / "d").mkdir()
    with box.watch(path=tree / "d") as stream:
        events = stream.events()
        assert next(events).name == "ready"
        (tree / "d").rmdir()
        assert [event.name for event in events] == ["delete", "end"]


def test_watch_errors(box: Box, tree: Path) -> None:
    failed(box.get("/watch", path=tree / "no"), 404, "ENOENT", "watch", tree / "no")


# --- notes ---------------------------------------------------------------------------------------


def metric(box: Box, name: str) -> float:
    text = box.api.call("GET", "/metrics", check=False).body.decode()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("thaw_") and name in line and not line.startswith("#")
    )


def test_changes_are_audited_and_bytes_counted(box: Box, tree: Path) -> None:
    before = metric(box, "bytes_total")
    box.put(b"x" * 1000, path=tree / "f")
    assert box.get(path=tree / "f").body == b"x" * 1000
    assert metric(box, "bytes_total") - before >= 2000
    box.post("remove", path=str(tree / "f"))
    box.post("remove", path=str(tree / "f"))
    lines = [line for line in box.audit() if line["details"].get("path") == str(tree / "f")]
    assert [(line["action"], line["result"]) for line in lines] == [
        ("files.write", "ok"), ("files.remove", "ok"), ("files.remove", "ENOENT"),
    ]  # fmt: skip
    assert all(line["sandbox"] == "a" for line in lines)


# --- ends ----------------------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[Box]:
    """One that may be stopped."""
    made = fresh_thawd()
    try:
        made.start()
        made.create("a")
        yield Box(made)
    finally:
        remove_thawd(made)


def test_the_machine_goes(other: Box, tree: Path) -> None:
    os.symlink("/dev/zero", tree / "endless")
    with (
        other.watch(path=tree) as watch,
        other.api.stream("GET", other.target(path=tree / "endless")) as reading,
    ):
        events = watch.events()
        assert next(events).name == "ready"
        assert reading.read(MIB) == bytes(MIB)
        (ident,) = other.thawd.machine_ids()
        other.thawd.kill_machine(ident)
        last = list(events)[-1]
        assert (last.name, last.data["error"]["code"]) == ("error", "guest_lost")
        # Chunked: cut without its last chunk, it can't pass for a whole body.
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            while reading.read(MIB):
                pass


def test_thawd_ends(other: Box, tree: Path) -> None:
    """A watch holds it up no longer than it must, and its program in the guest ends with it."""
    with other.watch(path=tree) as watch:
        events = watch.events()
        assert next(events).name == "ready"
        assert other.thawd.stop() == 0
        assert list(events) == []
    assert eventually(lambda: not working_on(tree))
