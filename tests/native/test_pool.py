# SPDX-License-Identifier: Apache-2.0
"""`thaw pool` and its clients with a stand-in for thaw-vmm; tests/vm has the real one."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_cli import WAIT_S, Cli, eventually, fakes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Pool:
    def __init__(self, cli: Cli, *args: str, **kw: object) -> None:
        self.cli = cli
        self.socket = cli.state / "pools/debian.sock"
        self.process = cli.popen("pool", "debian", *args, **kw)

    def wait_filled(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith(b"pool of debian: "), (line, self.end())

    def status(self) -> dict[str, int]:
        proc = self.cli("pool", "debian", "--status", "--json")
        assert proc.returncode == 0, proc.stderr
        data = json.loads(proc.stdout)
        assert isinstance(data, dict)
        return data

    def ready(self, count: int) -> bool:
        return eventually(lambda: self.status()["ready"] == count)

    def end(self, signo: int = signal.SIGTERM) -> tuple[int, bytes]:
        self.process.send_signal(signo)
        _, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, err


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def pool_of(cli: Cli) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []
    before = fakes()

    def make(*args: str, filled: bool = True, **kw: object) -> Pool:
        pools.append(Pool(cli, *args, **kw))
        if filled:
            pools[-1].wait_filled()
        return pools[-1]

    yield make
    for pool in pools:
        if pool.process.poll() is None:
            pool.end()
    assert eventually(lambda: fakes() <= before)
    assert list((cli.state / "pools").glob("*")) == []


def outcome(cli: Cli, tmp_path: Path, *options: str, **kw: object) -> tuple[str, str]:
    """Pool and strategy of a run."""
    report = tmp_path / "r.json"
    proc = cli.sh("echo out; exit 3", *options, "--json", str(report), **kw)
    assert (proc.returncode, proc.stdout) == (3, b"out\n"), proc.stderr
    data = json.loads(report.read_text())
    assert all(value is None or value >= 0 for value in data["clocks_ms"].values())
    return data["pool"], data["strategy"]


def test_hit_miss_refill(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "3")
    status = pool.status()
    assert (status["size"], status["ready"], status["hits"], status["misses"]) == (3, 3, 0, 0)
    assert status["pss_kib"] > 0 and status["zygote_pss_kib"] > 0
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    assert outcome(cli, tmp_path, "--no-pool") == ("none", "ws")
    assert outcome(cli, tmp_path, "--strategy", "copy") == ("none", "copy")
    assert outcome(cli, tmp_path, "--console", str(tmp_path / "c")) == ("none", "ws")
    assert pool.ready(3)
    status = pool.status()
    assert (status["hits"], status["misses"], status["starting"]) == (1, 0, 0)
    assert pool.end() == (0, b"")
    assert outcome(cli, tmp_path) == ("none", "ws")


def test_all_at_once(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    """More than there are: each works, and is counted as what it was."""
    pool = pool_of("--size", "2", "--populate")
    procs = []
    for number in range(8):
        report = tmp_path / f"{number}.json"
        args = ("run", "debian", "--json", str(report), "--", "sh", "-c", f"sleep 1; exit {number}")
        procs.append((cli.popen(*args), report))
    pools = []
    for number, (proc, report) in enumerate(procs):
        _, err = proc.communicate(timeout=WAIT_S)
        assert proc.returncode == number, err
        data = json.loads(report.read_text())
        pools.append(data["pool"])
        assert data["strategy"] == "ws"
    status = pool.status()
    assert pools.count("hit") == status["hits"] >= 2
    assert pools.count("miss") == status["misses"] and len(pools) == 8
    assert pool.ready(2)


def test_hostname_and_long_request(cli: Cli, pool_of: Callable[..., Pool]) -> None:
    pool_of("--size", "1")
    assert cli.sh("exit 0", "--hostname", "box-1").returncode == 0
    assert json.loads(cli.report.read_text())["hostname"] == "box-1"
    # Too long for the mailbox: it goes by a stream that the client makes.
    proc = cli.run("--", "sh", "-c", 'printf %s "$1" | wc -c', "sh", "x" * 50000)
    assert proc.stdout.split() == [b"50000"], proc.stderr


def test_killed_client_takes_its_vm_along(cli: Cli, pool_of: Callable[..., Pool]) -> None:
    pool = pool_of("--size", "2")
    before = fakes()
    client = cli.popen("run", "debian", "--", "sh", "-c", "echo up; sleep 1000")
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    client.kill()
    client.wait()
    assert pool.ready(2)
    # As many as before: the zygote, two shells.
    assert eventually(lambda: len(fakes()) == len(before))


def test_dead_shell_is_replaced(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "3")
    zygote = int(
        subprocess.run(
            ["pgrep", "-P", str(pool.process.pid)], capture_output=True, check=True
        ).stdout
    )
    shells = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    assert len(shells) == 3
    os.kill(int(shells[0]), signal.SIGKILL)
    assert eventually(
        lambda: pool.status()["ready"] == 3
        and shells[0] not in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
    )
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    code, err = pool.end()
    assert code == 0 and b"is gone: it is replaced" in err


def test_dead_zygote_is_replaced(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "2")
    zygote = int(
        subprocess.run(
            ["pgrep", "-P", str(pool.process.pid)], capture_output=True, check=True
        ).stdout
    )
    os.kill(zygote, signal.SIGKILL)
    # The shells it made live on.
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    assert pool.ready(2)
    assert outcome(cli, tmp_path) == ("hit", "mmap")


def test_killed_pool_leaves_nothing(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    before = fakes()
    pool = pool_of("--size", "3")
    client = cli.popen("run", "debian", "--", "sh", "-c", "echo up; sleep 2; exit 5")
    assert client.stdout is not None and client.stdout.readline() == b"up\n"
    pool.end(signal.SIGKILL)
    # The client has its machine, and keeps it.
    _, err = client.communicate(timeout=WAIT_S)
    assert client.returncode == 5, err
    assert eventually(lambda: fakes() <= before)
    # The name that is left is no pool, and is cleared away by the first one that finds it.
    assert pool.socket.exists()
    assert outcome(cli, tmp_path) == ("none", "ws")
    assert not pool.socket.exists()


def test_idle_shrinks_and_grows(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "4", "--idle-timeout", "500ms")
    assert eventually(lambda: pool.status()["target"] == 1)
    assert pool.status()["ready"] == 1
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    assert eventually(lambda: pool.status()["ready"] == 4)


def test_one_pool_a_template(cli: Cli, pool_of: Callable[..., Pool]) -> None:
    pool = pool_of("--size", "1")
    assert pool.socket.stat().st_mode & 0o777 == 0o600
    assert pool.socket.parent.stat().st_mode & 0o777 == 0o700
    other = pool_of("--size", "1", filled=False).process
    _, err = other.communicate(timeout=WAIT_S)
    assert other.returncode == 1 and b"runs already" in err
    assert pool.status()["ready"] == 1
    # It is in use, and can't be removed.
    proc = cli("template", "rm", "debian")
    assert proc.returncode == 1 and b"in use" in proc.stderr


def test_replaced_template(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "2")
    folder = cli.state / "templates/debian"
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    assert outcome(cli, tmp_path) == ("miss", "ws")
    assert pool.ready(2)
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    folder.rmdir()
    proc = cli.sh("exit 0")
    assert proc.returncode == 125 and b"no template" in proc.stderr
    assert pool.process.wait(timeout=WAIT_S) == 1


def test_machine_that_dies_at_the_start(cli: Cli, pool_of: Callable[..., Pool]) -> None:
    pool_of("--size", "1", THAW_FAKE="start-dies")
    proc = cli.sh("exit 0")
    assert proc.returncode == 125 and b"ended" in proc.stderr


def test_no_shell_comes_up(cli: Cli, pool_of: Callable[..., Pool]) -> None:
    pool = pool_of("--size", "2", filled=False, THAW_FAKE="shell-fails")
    _, err = pool.process.communicate(timeout=WAIT_S)
    assert pool.process.returncode == 1 and b"first shell" in err


def test_rude_clients(cli: Cli, pool_of: Callable[..., Pool], tmp_path: Path) -> None:
    pool = pool_of("--size", "1")
    silent = []
    for _ in range(40):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(pool.socket))
        silent.append(sock)
    for word in (b"nonsense", b"\0" * 4096, b"\1\0\0\0\1\0\0\0"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(pool.socket))
        sock.send(word)
        assert sock.recv(4096) == b""
    assert outcome(cli, tmp_path) == ("hit", "mmap")
    # One that asks and does not wait for the answer: its machine ends with its socket.
    before = fakes()
    assert pool.ready(1)
    for _ in range(3):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(pool.socket))
        sock.send(struct.pack("<II", 1, 1) + bytes(600))
        sock.close()
    assert pool.ready(1)
    assert eventually(lambda: len(fakes()) == len(before))
    assert outcome(cli, tmp_path) == ("hit", "mmap")


def test_usage(cli: Cli) -> None:
    for args, word in (
        (("debian", "--size", "0"), b"1 to 128"),
        (("debian", "--size", "129"), b"1 to 128"),
        (("debian", "--json"), b"--status"),
        (("../x",), b"not a template's name"),
        ((), b"TEMPLATE"),
    ):
        proc = cli("pool", *args)
        assert proc.returncode == 2 and word in proc.stderr, (args, proc.stderr)
    proc = cli("pool", "nosuch")
    assert proc.returncode == 1 and b"none of that name" in proc.stderr
    proc = cli("pool", "debian", "--status")
    assert proc.returncode == 1 and b"no pool" in proc.stderr


def test_long_state_path(tmp_path: Path) -> None:
    """A socket's address holds 107 characters; the state folder may be deeper."""
    folder = tmp_path / ("d" * 100) / ("e" * 60)
    folder.mkdir(parents=True)
    cli = Cli(folder)
    pool = Pool(cli, "--size", "1")
    pool.wait_filled()
    assert outcome(cli, folder) == ("hit", "mmap")
    assert pool.end()[0] == 0
