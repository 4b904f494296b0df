# SPDX-License-Identifier: Apache-2.0
"""The lab's peers where no guest can run: adapters against stand-ins that are strict about what
they are asked (fake_peer.py), and command lines of containers."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "bench/lab"))

from lab.arms import Adapter, Arm, Context, NotRun, Template  # noqa: E402
from lab.measure import Failed  # noqa: E402
from lab.peers import (  # noqa: E402
    ADAPTERS,
    bubblewrap,
    cloud_hypervisor,
    firecracker,
    machine,
    qemu_microvm,
    runsc,
)

HERE = Path(__file__).resolve().parent
SHIM = Path(os.environ.get("THAW_SHIM") or TOP / "build/release/thaw-shim")
LINE = "console=hvc0 quiet pci=off thaw.scratch=/dev/vda panic=-1"
needs_shim = pytest.mark.skipif(not SHIM.exists(), reason=f"{SHIM} is not built")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for a socket's: pytest's own are long."""
    with tempfile.TemporaryDirectory(prefix="thaw-") as name:
        yield Path(name)


@pytest.fixture
def ctx(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A context whose thaw only knows its guest's kernel line."""
    tmp_path = short_path
    for name in ("bin", "guest", "work"):
        (tmp_path / name).mkdir()
    for name in ("vmlinux", "initramfs.cpio", "root.erofs"):
        (tmp_path / "guest" / name).write_text(name)
    thaw = tmp_path / "bin/thaw"
    thaw.write_text(
        f'#!/bin/sh\n[ "$*" = "run debian --no-pool -- cat /proc/cmdline" ] && echo {LINE}\n'
    )
    thaw.chmod(0o755)
    template = Template(
        label="debian",
        name="debian",
        folder=tmp_path,
        guest=tmp_path / "guest",
        vcpus=1,
        memory_mib=256,
        command=["/bin/true"],
        manifest={},
    )
    # The test's own top: no recipe there, so a guest is warmed by the template's command alone.
    context = Context(
        top=tmp_path,
        bin=tmp_path / "bin",
        state=tmp_path,
        guest=tmp_path / "guest",
        work=tmp_path / "work",
        templates=[template],
    )
    monkeypatch.setattr(machine, "require_kvm", lambda: None)
    monkeypatch.setenv("FAKE_PEER_LOG", str(tmp_path / "requests"))
    monkeypatch.setenv("FAKE_PEER_SHIM", str(SHIM))
    for variable in ("FIRECRACKER", "CLOUD_HYPERVISOR", "RUNSC", "FAKE_PEER_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    return context


def fake(ctx: Context, name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ctx.bin / name
    shutil.copy(HERE / "fake_peer.py", path)
    monkeypatch.setenv(variable, str(path))


def requests(ctx: Context) -> list[tuple[str, dict[str, object]]]:
    """What the stand-in was asked since the last call."""
    log = ctx.top / "requests"
    lines = log.read_text().splitlines()
    log.unlink()
    return [(request, body) for request, body in map(json.loads, lines)]


def arm(ctx: Context, adapter: Adapter, variant: str) -> Arm:
    (found,) = [one for one in adapter.arms(ctx) if one.row.variant == variant]
    return found


def sample(one: Arm) -> dict[str, float]:
    one.prepare()
    clocks = one.sample()
    one.settle()
    assert 0 < clocks["c5"] <= clocks["wall"]
    return clocks


def kernel_line(root: str, *without: str) -> str:
    words = [w for w in LINE.split() if w != "thaw.scratch=/dev/vda" and w not in without]
    return " ".join([*words, f"thaw.root={root}", "thaw.scratch=none"])


# --- Firecracker ----------------------------------------------------------------------------------


def firecracker_boot(ctx: Context, variant: str, pmem: bool) -> list[tuple[str, object]]:
    guest, own = ctx.work / "peer-guest", ctx.work / f"peer-firecracker-{variant}"
    root = str(guest / "root.erofs")
    boot = {
        "kernel_image_path": str(guest / "vmlinux"),
        "initrd_path": str(guest / "initramfs.cpio"),
        "boot_args": kernel_line("/dev/pmem0" if pmem else "/dev/vda"),
    }
    as_pmem = {"id": "root", "path_on_host": root, "root_device": False, "read_only": True}
    as_drive = {"drive_id": "root", "path_on_host": root, "is_root_device": False}
    as_drive["is_read_only"] = True
    return [
        ("PUT /machine-config", {"vcpu_count": 1, "mem_size_mib": 256}),
        ("PUT /boot-source", boot),
        ("PUT /pmem/root", as_pmem) if pmem else ("PUT /drives/root", as_drive),
        ("PUT /vsock", {"guest_cid": 3, "uds_path": str(own / "vsock")}),
        ("PUT /entropy", {}),
        ("PUT /actions", {"action_type": "InstanceStart"}),
    ]


@needs_shim
@pytest.mark.parametrize(("version", "pmem"), [("v1.16.1", True), ("v1.13.0", False)])
def test_firecracker_boots(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, version: str, pmem: bool
) -> None:
    fake(ctx, "firecracker", "FIRECRACKER", monkeypatch)
    monkeypatch.setenv("FAKE_PEER_VERSION", f"Firecracker {version}")
    one = arm(ctx, firecracker.ADAPTER, "cold-boot")
    one.setup()
    for _ in range(2):  # the second finds the first one's sockets
        sample(one)
        assert requests(ctx) == firecracker_boot(ctx, "cold-boot", pmem)
    one.teardown()
    assert not list(ctx.work.glob("peer-firecracker*"))


@needs_shim
def test_firecracker_restores(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(ctx, "firecracker", "FIRECRACKER", monkeypatch)
    one = arm(ctx, firecracker.ADAPTER, "restore")
    own = ctx.work / "peer-firecracker-restore"
    one.setup()
    snapshot = {
        "snapshot_type": "Full",
        "snapshot_path": str(own / "state"),
        "mem_file_path": str(own / "memory"),
    }
    assert requests(ctx) == [
        *firecracker_boot(ctx, "restore", pmem=True),
        ("PATCH /vm", {"state": "Paused"}),
        ("PUT /snapshot/create", snapshot),
    ]
    load = {
        "snapshot_path": str(own / "state"),
        "mem_backend": {"backend_type": "File", "backend_path": str(own / "memory")},
        "resume_vm": True,
    }
    for _ in range(2):
        sample(one)
        assert requests(ctx) == [("PUT /snapshot/load", load)]
    (own / "memory").write_bytes(b"other")
    one.prepare()
    with pytest.raises(Failed, match=r"PUT /snapshot/load: status 400: .*not a memory file"):
        one.sample()
    one.teardown()


def test_firecracker_too_old(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(ctx, "firecracker", "FIRECRACKER", monkeypatch)
    monkeypatch.setenv("FAKE_PEER_VERSION", "Firecracker v1.7.0")
    with pytest.raises(NotRun, match=r"version 1\.7; 1\.8 is needed"):
        arm(ctx, firecracker.ADAPTER, "restore").setup()


# --- Cloud Hypervisor -----------------------------------------------------------------------------


def cloud_hypervisor_boot(ctx: Context, variant: str) -> list[tuple[str, object]]:
    guest, own = ctx.work / "peer-guest", ctx.work / f"peer-cloud-hypervisor-{variant}"
    config = {
        "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
        "memory": {"size": 256 << 20},
        "payload": {
            "kernel": str(guest / "vmlinux"),
            "initramfs": str(guest / "initramfs.cpio"),
            "cmdline": kernel_line("/dev/pmem0", "pci=off"),
        },
        "pmem": [{"file": str(guest / "root.erofs"), "discard_writes": True}],
        "vsock": {"cid": 3, "socket": str(own / "vsock")},
        "rng": {"src": "/dev/urandom"},
        "serial": {"mode": "Null"},
        "console": {"mode": "Off"},
    }
    return [("PUT /api/v1/vm.create", config), ("PUT /api/v1/vm.boot", {})]


@needs_shim
def test_cloud_hypervisor_boots(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(ctx, "cloud-hypervisor", "CLOUD_HYPERVISOR", monkeypatch)
    one = arm(ctx, cloud_hypervisor.ADAPTER, "cold-boot")
    one.setup()
    for _ in range(2):
        sample(one)
        assert requests(ctx) == cloud_hypervisor_boot(ctx, "cold-boot")
    one.teardown()


@needs_shim
@pytest.mark.parametrize(
    ("variant", "more"),
    [("restore", {}), ("restore-ondemand", {"memory_restore_mode": "OnDemand"})],
)
def test_cloud_hypervisor_restores(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, variant: str, more: dict[str, str]
) -> None:
    fake(ctx, "cloud-hypervisor", "CLOUD_HYPERVISOR", monkeypatch)
    one = arm(ctx, cloud_hypervisor.ADAPTER, variant)
    url = f"file://{ctx.work}/peer-cloud-hypervisor-{variant}/snapshot"
    one.setup()
    assert requests(ctx) == [
        *cloud_hypervisor_boot(ctx, variant),
        ("PUT /api/v1/vm.pause", {}),
        ("PUT /api/v1/vm.snapshot", {"destination_url": url}),
    ]
    for _ in range(2):
        sample(one)
        assert requests(ctx) == [
            ("PUT /api/v1/vm.restore", {"source_url": url, **more}),
            ("PUT /api/v1/vm.resume", {}),
        ]
    one.teardown()


# --- what goes wrong ------------------------------------------------------------------------------


def test_binaries_that_are_not_there(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows stay, empty, with the reason; the same rows as with a binary."""
    plain = ctx.top / "plain"
    plain.write_text("no program")
    for adapter, variable in (
        (firecracker.ADAPTER, "FIRECRACKER"),
        (cloud_hypervisor.ADAPTER, "CLOUD_HYPERVISOR"),
    ):
        monkeypatch.delenv(variable, raising=False)
        unset = adapter.arms(ctx)
        assert all(
            one.row.not_run == f"{variable} is not set: it names the binary" for one in unset
        )
        for value, reason in (
            ("/no/such", "no such file (the test host sees only the checkout)"),
            (str(plain), "not executable"),
        ):
            monkeypatch.setenv(variable, value)
            rows = [one.row for one in adapter.arms(ctx)]
            assert {row.not_run for row in rows} == {f"{variable}={value}: {reason}"}
        fake(ctx, adapter.name, variable, monkeypatch)
        there = adapter.arms(ctx)
        assert [one.id for one in there] == [one.id for one in unset]
        assert all(one.row.not_run is None for one in there)


def test_vmm_that_ends_at_once(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ctx.bin / "firecracker"
    version = '[ "$1" = --version ] && { echo v1.16.0; exit; }'
    path.write_text(f"#!/bin/sh\n{version}\necho no luck today >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("FIRECRACKER", str(path))
    one = arm(ctx, firecracker.ADAPTER, "cold-boot")
    one.setup()
    one.prepare()
    with pytest.raises(Failed, match="firecracker ended by itself: no luck today"):
        one.sample()


def test_path_without_room_for_a_socket(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(ctx, "firecracker", "FIRECRACKER", monkeypatch)
    ctx.work /= "x" * 80
    ctx.work.mkdir()
    with pytest.raises(NotRun, match="too long for a socket; set THAW_STATE"):
        arm(ctx, firecracker.ADAPTER, "restore").setup()


def test_adapters() -> None:
    assert [adapter.name for adapter in ADAPTERS] == [
        *("qemu-microvm", "firecracker", "cloud-hypervisor", "bubblewrap", "runsc")
    ]


def test_every_row_is_a_peer_of_its_own(ctx: Context) -> None:
    rows = [one.row for adapter in ADAPTERS for one in adapter.arms(ctx)]
    assert len({row.id for row in rows}) == len(rows)
    for adapter in ADAPTERS:
        for one in adapter.arms(ctx):
            row = one.row
            assert (row.kind, row.peer) == ("peer", adapter.name)
            assert row.id == f"peer/{adapter.name}/{row.variant}" and not row.samples
    wanted = {"peer/bubblewrap/run", "peer/qemu-microvm/restore"}  # by the targets
    assert wanted <= {row.id for row in rows}


def test_qemu_command_lines(ctx: Context) -> None:
    guest = machine.Guest(ctx)
    guest.lay_out()
    folder = ctx.work / "a,b"
    driver = qemu_microvm.Qemu(2, shared=True)
    boot = driver._argv(guest, folder, private=False)
    clone = driver._argv(guest, folder, private=True)
    assert [b for b, c in zip(boot, clone, strict=True) if b != c] == [
        f"memory-backend-file,mem-path={ctx.work}/a,,b/memory,share=on,id=ram,size=256M"
    ]
    assert boot[boot.index("-accel") + 1] == "kvm"
    assert boot[boot.index("-append") + 1] == kernel_line("/dev/vda", "console=hvc0")


# --- containers -----------------------------------------------------------------------------------


def script(ctx: Context, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = ctx.bin / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ctx.bin}:{os.environ['PATH']}")
    return path


def test_bubblewrap(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ctx.top / "argv"
    # Prints nothing for /bin/true, and what the last argument is for /bin/echo.
    script(
        *(ctx, "bwrap"),
        f'echo "$*" >>{log}\nfor last; do :; done\n[ "$last" = /bin/true ] || echo "$last"',
        monkeypatch,
    )
    for variant, end in (("run", "--ro-bind / / /bin/true"), ("run-output", "a line of output")):
        one = arm(ctx, bubblewrap.ADAPTER, variant)
        one.setup()
        clocks = sample(one)
        assert clocks["c5"] == clocks["wall"]
        said = log.read_text().splitlines()
        assert len(said) == 2 and said[0].startswith("--unshare-all ") and said[0].endswith(end)
        log.unlink()


def test_a_container_whose_output_is_lost(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    script(ctx, "bwrap", "exit 0", monkeypatch)
    with pytest.raises(NotRun, match="output is '', not 'a line of output"):
        arm(ctx, bubblewrap.ADAPTER, "run-output").setup()


def test_runsc(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ctx.top / "argv"
    path = script(ctx, "other-runsc", f'echo "$*" >>{log}', monkeypatch)
    monkeypatch.setenv("RUNSC", str(path))
    one = arm(ctx, runsc.ADAPTER, "run")
    one.setup()
    sample(one)
    folder = ctx.work / "peer-runsc-run"
    config = json.loads((folder / "config.json").read_text())
    assert config["process"]["args"] == ["/bin/true"] and config["root"]["readonly"] is True
    first, second = (line.split() for line in log.read_text().splitlines())
    assert first[:-1] == second[:-1] and first[-1] != second[-1]  # one id a container
    assert first[:-1] == [
        *("--root", str(runsc.state("run")), "--network=none", "run", "--bundle", str(folder))
    ]
    one.teardown()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("adapter", "name"), [(bubblewrap.ADAPTER, "bwrap"), (runsc.ADAPTER, "runsc")]
)
def test_containers_that_are_not_installed(
    ctx: Context, monkeypatch: pytest.MonkeyPatch, adapter: Adapter, name: str
) -> None:
    monkeypatch.setenv("PATH", str(ctx.bin))
    for one in adapter.arms(ctx):
        with pytest.raises(NotRun, match=f"{name} is not installed"):
            one.setup()


def test_container_that_fails(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    script(ctx, "bwrap", "echo No permissions to create new namespace >&2; exit 1", monkeypatch)
    with pytest.raises(NotRun, match="bwrap ended with status 1: No permissions"):
        arm(ctx, bubblewrap.ADAPTER, "run").setup()
