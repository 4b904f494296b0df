# SPDX-License-Identifier: Apache-2.0
"""`thaw template export` and `import` with a made-up template: files, pipes, other machines."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
THAW = TOP / "build/release/thaw"
MIB = 1 << 20
PAGE = 4096

pytestmark = pytest.mark.skipif(not THAW.exists(), reason=f"{THAW} is not built")


def load_seeds() -> object:
    """The state file is the fuzzers' seed: one description of the format is enough."""
    path = TOP / "tests/fuzz/seeds_snapshot.py"
    spec = importlib.util.spec_from_file_location("seeds_snapshot", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh(data: bytes) -> bytes:
    """XXH3-128 in canonical form, by the library itself."""
    lib = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    lib.XXH3_128bits.restype = Xxh128
    lib.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    value = lib.XXH3_128bits(data, len(data))
    return value.high.to_bytes(8, "big") + value.low.to_bytes(8, "big")


def block_digest(data: bytes) -> str:
    """FORMAT.md, block digest."""
    stream = bytearray()
    for offset in range(0, len(data), PAGE):
        page = data[offset : offset + PAGE]
        if any(page):
            stream += offset.to_bytes(8, "little") + page
    return xxh(bytes(stream) + len(data).to_bytes(8, "little")).hex()


class Host:
    """A machine: its state folder, with or without the template "one"."""

    def __init__(self, folder: Path) -> None:
        self.state = folder
        self.templates = folder / "templates"
        self.images = folder / "images"
        self.env = {"PATH": os.environ["PATH"], "THAW_STATE": str(folder)}

    def __call__(self, *args: str, **kw: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(THAW), "template", *args],
            env=self.env, capture_output="stdout" not in kw, timeout=60, check=False, **kw,
        )  # type: ignore[call-overload]  # fmt: skip

    def ok(self, *args: str, **kw: object) -> bytes:
        proc = self(*args, **kw)
        assert proc.returncode == 0, proc
        return proc.stdout

    def files(self, name: str) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (self.templates / name).iterdir()}

    def names(self) -> list[str]:
        return sorted(p.name for p in self.templates.iterdir())

    def make_one(self, name: str = "one") -> None:
        seeds = load_seeds()
        folder = self.templates / name
        folder.mkdir(parents=True)
        image = self.images / "fedcba98/root.erofs"
        image.parent.mkdir(parents=True)
        root = bytearray(os.urandom(3 * MIB))
        root[1024:1028] = 0xE0F5E1E2.to_bytes(4, "little")
        image.write_bytes(root)
        memory = bytearray(128 * MIB)
        memory[5 * MIB : 8 * MIB] = os.urandom(3 * MIB)
        memory[40 * MIB : 41 * MIB] = b"text" * (MIB // 4)
        disk = bytearray(MIB)
        disk[PAGE : 2 * PAGE] = b"d" * PAGE
        manifest = json.loads(seeds.manifest())  # type: ignore[attr-defined]
        manifest |= {
            "name": name,
            "memory_digest": block_digest(bytes(memory)),
            "disk_bytes": MIB,
            "disk_digest": block_digest(bytes(disk)),
            "root_image": str(image),
            "root_bytes": len(root),
            "root_digest": xxh(bytes(root)).hex(),
        }
        text = json.dumps(manifest).encode()
        sections = [
            (seeds.MACHINE, seeds.machine(1, 4 * MIB, MIB)),  # type: ignore[attr-defined]
            (seeds.CPUID, seeds.cpuid()),  # type: ignore[attr-defined]
            (seeds.IOAPIC, bytes(208)),  # type: ignore[attr-defined]
            (seeds.VCPU, seeds.vcpu()),  # type: ignore[attr-defined]
            *((seeds.VIRTIO, seeds.virtio(slot)) for slot in range(5)),  # type: ignore[attr-defined]
        ]
        state = bytearray(seeds.state(sections))  # type: ignore[attr-defined]
        state[40:56] = xxh(text)
        state[24:40] = xxh(bytes(state))
        (folder / "manifest.json").write_bytes(text)
        (folder / "state").write_bytes(state)
        for part, data in (("memory", memory), ("disk", disk)):
            (folder / part).write_bytes(data)
            subprocess.run(["fallocate", "-d", str(folder / part)], check=True)


@pytest.fixture
def here(tmp_path: Path) -> Host:
    host = Host(tmp_path / "here")
    host.make_one()
    return host


@pytest.fixture
def there(tmp_path: Path) -> Host:
    return Host(tmp_path / "there")


def test_file_and_back(here: Host, tmp_path: Path) -> None:
    pack = tmp_path / "one.thaw"
    here.ok("export", "one", str(pack))
    assert oct(pack.stat().st_mode & 0o777) == "0o600"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "one.thaw"]
    before = here.files("one")
    here.ok("import", "two", str(pack))
    after = here.files("two")
    assert json.loads(after["manifest.json"])["name"] == "two"
    assert after["memory"] == before["memory"] and after["disk"] == before["disk"]
    assert [p.name for p in here.images.iterdir()] == ["fedcba98"]  # shared, not doubled
    here.ok("rm", "one", "two")
    here.ok("import", str(pack))
    assert here.files("one") == before  # under its own name, byte for byte
    usage = sum(p.stat().st_blocks * 512 for p in (here.templates / "one").iterdir())
    assert usage < 6 * MIB


def test_pipe_to_another_machine(here: Host, there: Host) -> None:
    writer = subprocess.Popen(
        [str(THAW), "template", "export", "one", "-"], env=here.env, stdout=subprocess.PIPE
    )
    there.ok("import", "-", stdin=writer.stdout)
    assert writer.stdout
    writer.stdout.close()
    assert writer.wait() == 0
    manifest = json.loads(there.files("one")["manifest.json"])
    assert manifest["root_image"].startswith(str(there.images))
    image = Path(manifest["root_image"]).read_bytes()
    assert image == next(here.images.glob("*/root.erofs")).read_bytes()
    assert there.files("one")["memory"] == here.files("one")["memory"]
    assert json.loads(there.ok("inspect", "one", "--json"))["manifest"]["root_bytes"] == 3 * MIB


@pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd")
def test_pipes_that_do_not_block(here: Host, there: Host) -> None:
    """As runtimes with an event loop make them; one end may also be slow."""
    out_read, out_write = os.pipe()
    os.set_blocking(out_write, False)
    command = [str(THAW), "template", "export", "one", "-"]
    with subprocess.Popen(command, env=here.env, stdout=out_write, stderr=subprocess.PIPE) as exp:
        os.close(out_write)
        in_read, in_write = os.pipe()
        os.set_blocking(in_read, False)
        command = [str(THAW), "template", "import", "-"]
        with subprocess.Popen(command, env=there.env, stdin=in_read, stderr=subprocess.PIPE) as imp:
            os.close(in_read)
            time.sleep(0.2)
            with contextlib.suppress(BrokenPipeError):
                while data := os.read(out_read, 1 << 16):
                    written = 0
                    while written < len(data):
                        written += os.write(in_write, data[written:])
            os.close(in_write)
            os.close(out_read)
            assert imp.stderr and imp.wait(60) == 0, imp.stderr.read()
        assert exp.stderr and exp.wait(60) == 0, exp.stderr.read()
    assert there.names() == ["one"]


def test_names_of_sandboxes_snapshots_are_not_imported(here: Host, tmp_path: Path) -> None:
    """Neither asked for nor by what a stranger wrote into the pack."""
    name = "snap.0123456789ab"
    stranger = Host(tmp_path / "stranger")
    stranger.make_one(name)
    pack = tmp_path / "one.pack"
    stranger.ok("export", name, str(pack))
    for args in ([str(pack)], [name, str(pack)], ["--replace", str(pack)]):
        proc = here("import", *args)
        assert proc.returncode == 1 and b"give another one" in proc.stderr
    assert here.names() == ["one"]
    here.ok("import", "two", str(pack))


def test_a_diff_that_comes_while_its_parent_is_replaced(here: Host, tmp_path: Path) -> None:
    pack = tmp_path / "one.pack"
    here.ok("export", "one", str(pack))
    data = pack.read_bytes()
    files = here.files("one")
    manifest = json.loads(files["manifest.json"]) | {"version": 2, "name": "late", "parent": "one"}
    manifest["diff"] = {
        "parent_state": files["state"][24:40].hex(), "pages": 7, "digest": "0" * 32,
    }  # fmt: skip
    command = [str(THAW), "template", "import", "--replace", "-"]
    with subprocess.Popen(
        command, env=here.env, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as proc:
        assert proc.stdin and proc.stderr
        proc.stdin.write(data[:-8])
        proc.stdin.flush()
        deadline = time.monotonic() + 30
        while not list(here.templates.glob(".one.tmp-*")):
            assert time.monotonic() < deadline and proc.poll() is None
            time.sleep(0.01)
        (here.templates / "late").mkdir()
        (here.templates / "late/manifest.json").write_text(json.dumps(manifest))
        proc.stdin.write(data[-8:])
        proc.stdin.close()
        assert proc.wait(60) == 1 and b"'late'" in proc.stderr.read()
    assert here.files("one") == files and here.names() == ["late", "one"]


def test_a_name_that_looks_like_anothers_leftover(here: Host, tmp_path: Path) -> None:
    pack = tmp_path / "one.pack"
    here.ok("export", "one", str(pack))
    with (here.templates / ".two.tmp-x.build").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        here.ok("import", "two", str(pack))
        assert (here.templates / ".two.tmp-x.build").exists()
    here.ok("import", "two.tmp-x", str(pack))
    assert here.names() == ["one", "two", "two.tmp-x"]


def test_a_pack_is_a_zstd_file(here: Host, tmp_path: Path) -> None:
    pack = tmp_path / "one.thaw"
    here.ok("export", "one", str(pack), "--threads", "3")
    subprocess.run(["zstd", "-t", "-q", str(pack)], check=True)
    plain = subprocess.run(["zstd", "-dc", str(pack)], check=True, capture_output=True).stdout
    files = here.files("one")
    assert plain.startswith(files["manifest.json"] + files["state"][:PAGE])
    assert files["memory"][5 * MIB : 8 * MIB] in plain
    assert xxh(pack.read_bytes()[:-16]) == pack.read_bytes()[-16:]


def test_refusals(here: Host, there: Host, tmp_path: Path) -> None:
    pack = tmp_path / "one.thaw"
    here.ok("export", "one", str(pack))
    data = pack.read_bytes()

    def refused(*args: str, word: str, status: int = 1, host: Host = there) -> None:
        proc = host(*args, stdin=subprocess.DEVNULL)
        assert proc.returncode == status and word in proc.stderr.decode(), proc

    refused("export", "one", str(pack), word="already exists", host=here)
    here.ok("export", "one", str(pack), "--replace")
    assert pack.read_bytes() == data
    refused("export", "gone", str(pack), word="there is none", host=here)
    refused("export", "one", str(tmp_path / "no/pack"), word="No such file", host=here)
    refused("export", "one", "/dev/full", word="No space left", host=here)
    refused("export", "one", word="FILE", status=2, host=here)
    refused("import", "Bad", str(pack), word="'Bad'", status=2)
    refused("import", str(pack), "--threads", "0", word="--threads", status=2)
    refused("import", str(tmp_path / "gone"), word="No such file")
    refused("import", "-", word="standard input: truncated")
    refused("import", str(pack), word="'one' exists", host=here)
    here.ok("import", str(pack), "--replace")
    bad = tmp_path / "bad"
    for name, content, word in (
        ("cut", data[:-1], "truncated"),
        ("longer", data + b"\0", "something follows"),
        ("flipped", data[:3000] + bytes([data[3000] ^ 1]) + data[3001:], "digest mismatch"),
        ("text", b"text" * 100, "not a pack"),
    ):
        bad.write_bytes(content)
        refused("import", str(bad), word=word)
        assert there.names() == [], name
        assert list(there.images.iterdir()) == [], name
    here.ok("export", "one", str(pack), "--replace", "--no-root")
    refused("import", str(pack), word="neither here nor in the pack")
    assert there.names() == []


def test_pack_for_the_strategy(here: Host) -> None:
    before = here.files("one")
    here.ok("pack", "one")
    here.ok("pack", "one", "--threads", "1")
    after = here.files("one")
    pack = after.pop("memory.pack")
    assert after == before and len(pack) < 4 * MIB and pack[8:16] == b"THAWPACK"
    assert oct((here.templates / "one").stat().st_mode & 0o777) == "0o500"
    assert here("pack", "gone").returncode == 1
    # No part of what is exported, and gone with the template.
    assert here.ok("export", "one", "-") and here.ok("rm", "one") == b""
    assert here.names() == []


def test_a_killed_export_leaves_nothing(here: Host, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    proc = subprocess.Popen(
        [str(THAW), "template", "export", "one", str(fifo)], env=here.env, stderr=subprocess.PIPE
    )
    with fifo.open("rb") as reader:
        assert len(reader.read(64)) == 64
    # Its reader is gone: an error, no signal.
    assert proc.wait(timeout=60) == 1
    assert proc.stderr and b"Broken pipe" in proc.stderr.read()
    assert here.names() == ["one"]
