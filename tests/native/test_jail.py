# SPDX-License-Identifier: Apache-2.0
"""Jailed machines on any /dev/kvm, with a guest of a few instructions (tests/hostile/sleeper.c):
every strategy, snapshots on request, hard time-outs. Real guests, and the limits of cgroup v2, are
in tests/vm/test_jail.py; what a jailed process can't do, in tests/unit/test_jail.c."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
BUILD = TOP / "build/release"
THAW, VMM = BUILD / "thaw", BUILD / "thaw-vmm"
GUEST = TOP / "build/hostile/sleeper.elf"
UID_BASE = 1879048192
WAIT_S = 60

# vmm/util/ctl.h
MSG = struct.Struct("<IIIIiIQ5Q192s")
START, SNAPSHOT_REQ, DEADLINE = 3, 5, 6
RUNNING, RESUMED, SNAPSHOT, EXIT, WAITING, OWNED, ARMED = 65, 66, 68, 69, 70, 72, 73
EXIT_DEADLINE, SNAPSHOT_EXIT, SNAPSHOT_INTO = 5, 1, 2
STATUS_DEADLINE = 4

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not os.access("/dev/kvm", os.R_OK | os.W_OK), reason="needs /dev/kvm"),
    pytest.mark.skipif(not (GUEST.exists() and VMM.exists()), reason="make unit-bins"),
]


@dataclass
class Message:
    type: int
    reason: int
    error: int
    text: str


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(WAIT_S)

    def send(
        self, kind: int, port: int = 0, number: int = 0, text: str = "", fd: int | None = None
    ) -> None:
        data = MSG.pack(1, kind, port, 0, 0, 0, number, 0, 0, 0, 0, 0, text.encode())
        rights = (
            [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        )
        self.sock.sendmsg([data], rights)

    def get(self, kind: int) -> Message:
        """The next message of @kind; others before it are passed over."""
        while True:
            data = self.sock.recv(MSG.size)
            assert data, f"the channel ended before message {kind}"
            fields = MSG.unpack(data)
            if fields[1] == kind:
                text = fields[-1].split(b"\0")[0].decode()
                return Message(kind, fields[3], fields[4], text)


class Host:
    def __init__(self, state: Path) -> None:
        self.state = state
        for name in ("templates", "scratch", "images", "run", "uids"):
            (state / name).mkdir(parents=True, mode=0o700)
        self.root = state / "images/root.erofs"
        image = bytearray(8192)
        struct.pack_into("<I", image, 1024, 0xE0F5E1E2)
        self.root.write_bytes(image)
        self.root.chmod(0o644)
        self.template = state / "templates/tiny"
        subprocess.run(
            [
                *(VMM, "boot", "--kernel", GUEST, "--cmdline", "x", "--memory", "128M"),
                *("--disk-size", "16M", "--disk-dir", state / "scratch", "--root", self.root),
                *("--snapshot", self.template, "--name", "tiny"),
            ],
            check=True,
            timeout=WAIT_S,
        )

    def thaw(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "THAW_STATE": str(self.state)}
        return subprocess.run(
            [THAW, *args], env=env, capture_output=True, text=True, check=False, timeout=WAIT_S
        )

    def start(self, *args: str) -> tuple[str, int]:
        """A jailed sandbox. Return: id, pid."""
        proc = self.thaw("run", "-d", "--jail", "no-cgroup", *args, "tiny")
        assert proc.returncode == 0, proc.stderr
        box = proc.stdout.strip()
        return box, int((self.state / "run" / box / "pid").read_text().split()[0])

    def own(self, box: str) -> Channel:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(self.state / "run" / box / "ctl"))
        channel = Channel(sock)
        channel.get(OWNED)
        return channel

    def end(self, pid: int) -> None:
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], WAIT_S)[0]
        os.close(handle)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("jail") / "s")
    yield made
    for pid in made.state.glob("run/*/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text().split()[0]), signal.SIGKILL)


def uid_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("\nUid:\t")[1].split()[0])


def deleted(fd: Path) -> bool:
    return str(fd.readlink()).endswith(" (deleted)")


@pytest.mark.parametrize("strategy", ["mmap", "copy", "memfd", "uring", "uffd", "ws"])
def test_every_strategy(host: Host, strategy: str) -> None:
    box, pid = host.start("--strategy", strategy)
    assert uid_of(pid) >= UID_BASE
    assert not list(Path(f"/proc/{pid}/root/").iterdir())
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        # Nothing of the host that has a place there, but what was meant for it.
        assert (
            not target.startswith(str(host.state))
            or deleted(fd)
            or target == str(host.root)
            or target.startswith((f"{host.state}/run/{box}/log", f"{host.state}/uids/"))
        ), target
    host.end(pid)


def test_users_differ_and_are_free_again(host: Host) -> None:
    pids = [host.start()[1] for _ in range(3)]
    uids = [uid_of(pid) for pid in pids]
    assert len(set(uids)) == 3
    host.end(pids[0])
    pids[0] = host.start()[1]
    assert uid_of(pids[0]) == uids[0]
    for pid in pids:
        host.end(pid)


def ask(host: Host, channel: Channel, folder: Path, uid: int, flags: int) -> Message:
    folder.mkdir(mode=0o700)
    os.chown(folder, uid, uid)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    channel.send(SNAPSHOT_REQ, flags, host.template.stat().st_ino, "snap.0123456789ab", fd)
    os.close(fd)
    return channel.get(ARMED)


def test_snapshots_into_a_folder(host: Host) -> None:
    box, pid = host.start()
    uid = uid_of(pid)
    channel = host.own(box)
    # Beside its parent: a jailed machine does not see where that is.
    refused = ask(host, channel, host.state / "beside", uid, 0)
    assert refused.error != 0 and not list((host.state / "beside").iterdir())
    folder = host.state / "into"
    assert ask(host, channel, folder, uid, SNAPSHOT_INTO).error == 0
    assert channel.get(SNAPSHOT).error == 0
    assert sorted(p.name for p in folder.iterdir()) == [
        *("diff", "disk", "manifest.json", "memory", "state")
    ]
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_uid == uid
        assert path.stat().st_mode & 0o777 == (0o500 if path.is_dir() else 0o400)
    # It goes on, and ends with the next one.
    folder = host.state / "last"
    assert ask(host, channel, folder, uid, SNAPSHOT_INTO | SNAPSHOT_EXIT).error == 0
    assert channel.get(SNAPSHOT).error == 0
    channel.get(EXIT)


def test_a_folder_that_is_not_its_own(host: Host) -> None:
    box, pid = host.start()
    channel = host.own(box)
    assert ask(host, channel, host.state / "roots", 0, SNAPSHOT_INTO).error != 0
    channel.send(DEADLINE, number=1)
    assert channel.get(EXIT).reason == EXIT_DEADLINE
    assert pid


def test_an_image_that_was_not_handed_over(host: Host) -> None:
    proc = subprocess.run(
        [
            *(VMM, "restore", host.template, "--disk-dir", host.state / "scratch"),
            *("--jail", str(UID_BASE)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert proc.returncode == 1 and str(host.root) in proc.stderr, proc.stderr


def vmm(host: Host, *args: str, **kwargs: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(str(VMM), "restore", str(host.template), "--disk-dir", str(host.state / "scratch")),
            *("--root-image", str(host.root), "--jail", str(UID_BASE + 60000), *args),
        ],
        **kwargs,  # type: ignore[call-overload]
    )


def test_hard_timeout(host: Host) -> None:
    assert vmm(host, "--hard-timeout", "50").wait(WAIT_S) == STATUS_DEADLINE


def test_hard_timeout_of_one_that_waited(host: Host) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = theirs.fileno()
    process = vmm(host, "--wait", "--ctl-fd", str(fd), pass_fds=[fd])
    theirs.close()
    channel = Channel(ours)
    channel.get(WAITING)
    channel.send(START, number=50, text="name")
    channel.get(RUNNING)
    assert channel.get(EXIT).reason == EXIT_DEADLINE
    assert process.wait(WAIT_S) == STATUS_DEADLINE


def test_hard_timeout_moves(host: Host) -> None:
    box, _ = host.start()
    channel = host.own(box)
    channel.send(DEADLINE, number=3_600_000)
    channel.send(DEADLINE, number=0)
    channel.send(DEADLINE, number=1)
    message = channel.get(EXIT)
    assert message.reason == EXIT_DEADLINE and "time-out" in message.text


def test_a_pool_of_jailed_machines(host: Host) -> None:
    env = {"PATH": os.environ["PATH"], "THAW_STATE": str(host.state)}
    pool = subprocess.Popen(
        [str(THAW), "pool", "tiny", "--size", "2", "--jail", "no-cgroup"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert pool.stdout is not None
        assert "2 ready" in pool.stdout.readline()
        status = json.loads(host.thaw("pool", "tiny", "--status", "--json").stdout)
        assert (status["ready"], status["zygote_pss_kib"]) == (2, 0)
        children = Path(f"/proc/{pool.pid}/task/{pool.pid}/children").read_text().split()
        assert len({uid_of(int(pid)) for pid in children} - {0}) == 2
        # One that dies is replaced.
        os.kill(int(children[0]), signal.SIGKILL)
        handles = [os.pidfd_open(int(children[1]))]
    finally:
        pool.terminate()
    assert pool.wait(WAIT_S) == 0
    assert select.select(handles, [], [], WAIT_S)[0]
    os.close(handles[0])
