# SPDX-License-Identifier: Apache-2.0
"""The thaw command over thawd's API: a real thawd, stand-ins for its machines, real shims."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import MACHINE, THAW, TOP, Thawd, eventually, needs_thawd, thawd  # noqa: F401

pytestmark = needs_thawd
# What was started in the background of a script has it ignored, and hands that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
WAIT_S = 60


class Cli:
    """thaw, asking one thawd."""

    def __init__(self, daemon: Thawd, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.env = {
            "PATH": os.environ["PATH"],
            "THAW_SOCKET": daemon.socket,
            "THAW_STATE": str(daemon.state),
            "THAW_VMM": str(MACHINE),
            "TERM": "vt100",
        }

    def __call__(
        self, *args: str, stdin: bytes | None = None, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(THAW), *args],
            env={**self.env, **env},
            cwd=self.folder,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    def ok(self, *args: str, stdin: bytes | None = None, **env: str) -> str:
        proc = self(*args, stdin=stdin, **env)
        assert proc.returncode == 0, (args, proc.returncode, proc.stderr.decode())
        return proc.stdout.decode()

    def json(self, *args: str) -> Any:  # noqa: ANN401
        return json.loads(self.ok(*args, "-o", "json"))

    def fails(self, status: int, *args: str) -> str:
        """Return: what it says."""
        proc = self(*args)
        assert proc.returncode == status, (args, proc.returncode, proc.stdout, proc.stderr)
        return proc.stderr.decode()

    def popen(self, *args: str, **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(THAW), *args], env=self.env, cwd=self.folder, **options)  # type: ignore[call-overload]

    def names(self, *options: str) -> list[str]:
        return self.ok("ps", "-q", *options).split()


@pytest.fixture
def cli(thawd: Thawd, tmp_path: Path) -> Cli:  # noqa: F811
    return Cli(thawd, tmp_path)


@pytest.fixture
def box(cli: Cli) -> str:
    return cli.ok("run", "-d", "--name", "user-123", "debian").strip()


class Terminal:
    """A terminal of 30 lines and 100 columns with thaw in it."""

    def __init__(self, cli: Cli, *args: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.slave)
        self.process = cli.popen(
            *args, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True
        )
        self.output = b""

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, text: bytes) -> bytes:
        def read() -> bool:
            if select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)
            return text in self.output

        assert eventually(read), (text, self.output)
        return self.output

    def end(self) -> int:
        """Its exit status; the terminal is as it was."""
        status = self.process.wait(WAIT_S)
        while select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.before
        return status

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(cli: Cli) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*args: str) -> Terminal:
        made.append(Terminal(cli, *args))
        return made[-1]

    yield make
    for one in made:
        one.close()


# Life


def test_a_life(cli: Cli) -> None:
    assert cli.ok("create", "--name", "one", "--label", "team=a", "debian") == "one\n"
    assert cli.names() == [] and cli.names("-a") == ["one"]
    assert "'thaw start'" in cli.fails(125, "exec", "one", "true")
    assert cli.ok("start", "one") == "one\n"
    seen = cli.json("inspect", "one")
    assert (seen["state"], seen["labels"]) == ("running", {"team": "a"})
    assert cli.names("--filter", "label=team=a") == ["one"]
    assert cli.names("--filter", "label=team=b") == []
    assert cli.names("--filter", "state=stopped") == []
    assert "running" in cli.ok("ps") and "(wrong_state)" in cli.fails(1, "start", "one")
    assert cli.json("stop", "-t", "1s", "one")["state"] == "stopped"
    assert "stopped (stopped)" in cli.ok("ps", "-a")
    assert "--force" not in cli.ok("rm", "one") and cli.names("-a") == []
    assert "no sandbox 'one'" in cli.fails(1, "rm", "one")


def test_what_runs_is_removed_by_force_alone(cli: Cli, box: str) -> None:
    assert "--force" in cli.fails(1, "rm", box)
    assert cli.ok("rm", "-f", box) == f"{box}\n" and cli.names("-a") == []


def test_create_again(cli: Cli) -> None:
    cli.ok("create", "--name", "one", "debian")
    assert "(conflict)" in cli.fails(1, "create", "--name", "one", "debian")
    assert cli.ok("create", "--name", "one", "--reuse", "--start", "debian") == "one\n"
    assert cli.names() == ["one"]
    other = cli.fails(1, "create", "--name", "one", "--reuse", "--start", "-l", "a=b", "debian")
    assert '  labels: it has {}, asked for {"a"' in other
    assert "--name" in cli.fails(2, "create", "--reuse", "debian")
    assert "(not_found)" in cli.fails(1, "create", "--start", "gone")
    assert "(unsupported)" in cli.fails(1, "create", "--internet", "debian")


def test_names_by_their_start(cli: Cli) -> None:
    for name in ("alpha-1", "alpha-2", "alpha", "beta"):
        cli.ok("run", "-d", "--name", name, "debian")
    assert cli.ok("exec", "b", "echo", "hi") == "hi\n"
    # A whole name is that one, whatever else begins with it.
    assert cli.json("inspect", "alpha")["name"] == "alpha"
    ident = cli.json("inspect", "beta")["id"]
    assert cli.json("inspect", ident[:6])["name"] == "beta"
    said = cli.fails(1, "stop", "alp")
    assert "more than one" in said
    assert all(f"  {name}\n" in said for name in ("alpha", "alpha-1", "alpha-2"))
    assert len(cli.json("inspect", "alpha", "beta")) == 2


def test_stopping_and_waiting(cli: Cli) -> None:
    cli.ok("run", "-d", "--name", "job", "debian", "--", "sh", "-c", "exit 7")
    assert cli.ok("wait", "job") == "7\n"
    assert "stopped (exited)" in cli.ok("ps", "-a")
    cli.ok("run", "-d", "--name", "server", "debian", "sleep", "1000")
    assert cli.fails(124, "wait", "server", "--timeout", "50ms")
    assert cli.ok("kill", "-s", "SIGTERM", "server") == "server\n"
    assert cli.ok("wait", "server") == "143\n"
    cli.ok("start", "server")
    cli.ok("kill", "server")
    assert cli.ok("wait", "server") == "destroyed\n"
    assert sorted(cli.ok("prune", "--force").split("\n")) == ["", "sandbox job", "sandbox server"]
    assert "--force" in cli.fails(1, "prune") and cli.json("prune", "-f") == {"removed": []}


def test_pause_fork_snapshot(cli: Cli, box: str) -> None:
    assert cli.ok("pause", box) == f"{box}\n" and cli.json("inspect", box)["state"] == "paused"
    assert "'thaw resume'" in cli.fails(125, "exec", box, "true")
    assert cli.json("resume", box)["state"] == "running"
    assert cli.ok("fork", box, "--name", "f1", "--name", "f2") == "f1\nf2\n"
    assert len(cli.json("fork", box, "-n", "2", "-l", "k=v")["forks"]) == 2
    assert len(cli.names("--filter", "label=k")) == 2
    ident = cli.ok("snapshot", "create", box, "--name", "ready").strip()
    assert [one["id"] for one in cli.json("snapshot", "ls")] == [ident]
    assert cli.ok("snapshot", "ls", "-q", "--sandbox", box).split() == [ident]
    cli.ok("create", "--snapshot", "ready", "--name", "again", "--start")
    assert cli.ok("exec", "again", "echo", "there") == "there\n"
    cli.ok("rm", "-f", "again")
    assert cli.ok("snapshot", "rm", "ready") == "ready\n" and cli.json("snapshot", "ls") == []


# Commands


def test_exec_statuses(cli: Cli, box: str) -> None:
    assert cli.ok("exec", box, "sh", "-c", "echo out; echo err >&2") == "out\n"
    assert cli("exec", box, "sh", "-c", "exit 7").returncode == 7
    assert cli("exec", box, "sh", "-c", "kill -9 $$").returncode == 137
    assert "nope" in cli.fails(127, "exec", box, "nope")
    assert cli.fails(126, "exec", box, "/etc/passwd")
    assert "/nowhere" in cli.fails(125, "exec", "-w", "/nowhere", box, "true")
    assert "no sandbox" in cli.fails(125, "exec", "gone", "true")
    assert "time-out" in cli.fails(124, "exec", "--timeout", "200ms", box, "sleep", "60")
    proc = cli("exec", "-i", box, "cat", stdin=b"\0\xff data" * 100000)
    assert proc.stdout == b"\0\xff data" * 100000
    assert cli.ok("exec", box, "cat") == ""
    script = 'pwd; echo "$A $SECRET"; id -u; id -g'
    out = cli.ok(
        "exec", "-w", "/tmp", "-e", "A=1 2", "-e", "SECRET", "-u", "1000:1001", box, "--",
        "sh", "-c", script, SECRET="kept off the command line",
    )  # fmt: skip
    assert out.split("\n") == ["/tmp", "1 2 kept off the command line", "1000", "1001", ""]


def test_signals_go_to_the_command(cli: Cli, box: str) -> None:
    script = "trap 'echo got; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    proc = cli.popen("exec", box, "sh", "-c", script, stdout=subprocess.PIPE)
    assert proc.stdout and proc.stdout.readline() == b"up\n"
    proc.send_signal(signal.SIGTERM)
    assert proc.stdout.read() == b"got\n" and proc.wait(WAIT_S) == 3


def test_exec_outlives_thawd(cli: Cli, box: str) -> None:
    script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 9"
    proc = cli.popen("exec", box, "sh", "-c", script, stdout=subprocess.PIPE)
    assert proc.stdout
    lines = [proc.stdout.readline() for _ in range(20)]
    cli.daemon.kill9()
    cli.daemon.start()
    lines += proc.stdout.readlines()
    assert lines == [b"%d\n" % (i + 1) for i in range(300)]
    assert proc.wait(WAIT_S) == 9


def test_a_sandbox_that_goes_tells_its_commands(cli: Cli, box: str) -> None:
    proc = cli.popen(
        "exec", box, "sh", "-c", "echo up; sleep 1000", stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert proc.stdout and proc.stdout.readline() == b"up\n"
    cli.ok("rm", "-f", box)
    _, said = proc.communicate(timeout=WAIT_S)
    assert proc.returncode == 125 and b"before the command ended" in said


def test_detached(cli: Cli, box: str) -> None:
    ident = cli.ok("exec", "-d", box, "sh", "-c", "echo kept; sleep 1000").strip()
    assert re.fullmatch("[0-9a-f]{32}", ident)
    assert eventually(lambda: cli.ok("logs", box, "--exec", ident[:8]) == "kept\n")
    assert json.loads(cli.ok("exec", "-d", "-o", "json", box, "true"))["argv"] == ["true"]
    assert cli.fails(127, "exec", "-d", box, "nope")
    assert cli.fails(126, "exec", "-d", box, "/etc/passwd")
    assert cli.fails(125, "exec", "-d", "-w", "/nowhere", box, "true")
    assert "--exec" in cli.fails(1, "logs", box)
    assert "no command" in cli.fails(1, "logs", box, "--exec", "z")


def test_terminal(cli: Cli, box: str, terminal: Callable[..., Terminal]) -> None:
    script = "tty; stty size; echo $TERM; trap 'stty size' WINCH; read x; echo got-$x; "
    script += "while :; do read y && break; done"
    term = terminal("exec", "-it", box, "sh", "-c", script)
    term.until(b"vt100")
    assert b"/dev/" in term.output and b"30 100" in term.output
    term.type(b"abc\r")
    term.until(b"got-abc")
    term.resize(40, 120)
    term.process.send_signal(signal.SIGWINCH)
    term.until(b"40 120")
    # A key of this terminal's driver is the command's.
    term.type(b"\x03")
    assert term.end() == 130


def test_leaving_a_terminal_and_coming_back(
    cli: Cli, box: str, terminal: Callable[..., Terminal]
) -> None:
    term = terminal("exec", "-it", box, "sh", "-c", "echo up; read x; echo got-$x; exit 5")
    term.until(b"up")
    term.type(b"\x10\x11")
    said = term.until(b"thaw attach")
    assert term.end() == 0
    ident = re.search(rb"--exec ([0-9a-f]+)", said)
    assert ident
    back = terminal("attach", box, "--exec", ident[1].decode())
    back.until(b"up")
    back.type(b"\x10again\r")
    back.until(b"again")
    assert back.end() == 5


def test_leaving_the_terminal_of_a_run(cli: Cli, terminal: Callable[..., Terminal]) -> None:
    term = terminal("run", "-it", "debian", "sh", "-c", "echo up; read x; exit 5")
    term.until(b"up")
    term.type(b"\x10\x11")
    said = term.until(b"--exec")
    assert term.end() == 0
    (name,) = cli.names()
    assert f"thaw attach {name} --exec".encode() in said
    assert cli.json("inspect", name)["auto_remove"]


def test_terminal_of_a_sandbox_that_goes(
    cli: Cli, box: str, terminal: Callable[..., Terminal]
) -> None:
    term = terminal("exec", "-it", box, "sh", "-c", "echo up; sleep 1000")
    term.until(b"up")
    cli.ok("rm", "-f", box)
    assert term.end() == 125


# thaw run


def test_run_leaves_nothing(cli: Cli) -> None:
    assert cli.ok("run", "debian", "echo", "hi") == "hi\n"
    assert cli("run", "debian", "--", "sh", "-c", "exit 4").returncode == 4
    assert cli.fails(127, "run", "debian", "nope")
    assert cli.fails(124, "run", "--timeout", "300ms", "debian", "sleep", "60")
    assert cli.ok("run", "-i", "debian", "cat", stdin=b"data") == "data"
    assert cli.names("-a") == [] and cli.daemon.machine_ids() == []
    assert "(not_found)" in cli.fails(125, "run", "gone", "true")


def test_run_that_is_killed_leaves_nothing_for_long(cli: Cli) -> None:
    proc = cli.popen(
        "run", "--idle-timeout", "300ms", "debian", "sh", "-c", "echo up; sleep 1000",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert proc.stdout and proc.stdout.readline() == b"up\n"
    proc.kill()
    proc.wait(WAIT_S)
    assert eventually(lambda: cli.names("-a") == [])


def test_run_with_a_name_stays(cli: Cli) -> None:
    assert cli.ok("run", "--name", "mine", "debian", "echo", "hi") == "hi\n"
    assert cli.names() == ["mine"]
    assert "(conflict)" in cli.fails(125, "run", "--name", "mine", "debian", "true")
    cli.ok("run", "--name", "other", "--rm", "debian", "true")
    cli.ok("run", "-d", "--rm", "--name", "third", "debian", "true")
    assert eventually(lambda: cli.names("-a") == ["mine"])
    made = cli.json("run", "-d", "--hostname", "h1", "-l", "a=b", "debian")
    assert (made["hostname"], made["labels"]) == ("h1", {"a": "b"})
    assert "--workdir" in cli.fails(125, "run", "-d", "-w", "/tmp", "debian", "true")


def test_run_without_thawd_where_one_is(cli: Cli) -> None:
    local = cli.ok("run", "-d", "--local", "debian").strip()
    assert re.fullmatch("[0-9a-f]{12}", local)
    assert cli.names() == [local] and cli.daemon.api.call("GET", "/v1/sandboxes").json[
        "sandboxes"
    ] == []  # fmt: skip
    assert cli.ok("exec", local[:5], "echo", "hi") == "hi\n"
    assert cli.ok("rm", "-f", local) == f"{local}\n" and cli.names("-a") == []
    cli.ok("run", "debian", "--json", "r.json", "--", "true")
    assert json.loads((cli.folder / "r.json").read_text())["pool"] == "none"


# Output that is kept


def test_logs(cli: Cli) -> None:
    script = "echo one; echo two >&2; printf three; sleep 1000"
    cli.ok("run", "-d", "--name", "talks", "debian", "--", "sh", "-c", script)
    assert eventually(lambda: cli("logs", "talks").stdout == b"one\nthree")
    assert cli("logs", "talks").stderr == b"two\n"
    assert cli.ok("logs", "--tail", "1", "talks") == "three"
    assert cli.ok("logs", "-n", "0", "talks") == ""
    stamped = cli.ok("logs", "-t", "talks").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S*Z ", line) for line in stamped)
    assert [line.split(" ", 1)[1] for line in stamped] == ["one", "three"]
    pieces = [json.loads(line) for line in cli.ok("logs", "-o", "json", "talks").splitlines()]
    assert "".join(piece["data"] for piece in pieces if piece["stream"] == "stderr") == "two\n"
    assert cli.ok("logs", "--since", "1h", "talks") == "one\nthree"
    assert cli.ok("logs", "--since", "2199-01-01T00:00:00Z", "talks") == ""


def test_logs_follow_and_stay(cli: Cli) -> None:
    script = "for i in 1 2 3; do echo $i; sleep 0.1; done"
    cli.ok("run", "-d", "--name", "clock", "debian", "--", "sh", "-c", script)
    assert cli.ok("logs", "-f", "clock") == "1\n2\n3\n"
    assert cli.ok("wait", "clock") == "0\n"
    assert cli.ok("logs", "clock") == "1\n2\n3\n"


def test_attach_to_an_entrypoint(cli: Cli) -> None:
    cli.ok("run", "-d", "--name", "work", "debian", "sh", "-c", "sleep 0.3; echo done; exit 6")
    proc = cli("attach", "work", "--no-stdin")
    assert (proc.returncode, proc.stdout) == (6, b"done\n"), proc.stderr


# Files


def make_tree(folder: Path) -> None:
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/leaf").write_text("leaf")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("deep/leaf")


def look(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "/" if path.is_dir() else f"{path.stat().st_mode & 0o777:o} "
            found[name] += path.read_text() if path.is_file() else ""
    return found


def test_cp(cli: Cli, box: str, tmp_path: Path) -> None:
    guest = tmp_path / "guest"  # the stand-in has the files of this machine
    guest.mkdir()
    here = tmp_path / "here"
    make_tree(here / "tree")
    want = look(here / "tree")
    (here / "file").write_text("content")
    # A file: to a name, over another, into a folder, under a new name in one.
    cli.ok("cp", "here/file", f"{box}:{guest}/renamed")
    assert (guest / "renamed").read_text() == "content"
    (here / "file").write_text("newer")
    cli.ok("cp", "here/file", f"{box}:{guest}/renamed")
    cli.ok("cp", "here/file", f"{box}:{guest}")
    assert (guest / "renamed").read_text() == (guest / "file").read_text() == "newer"
    assert "no such folder" in cli.fails(1, "cp", "here/file", f"{box}:{guest}/gone/")
    # A folder: to a new name, into one that is there, its contents.
    cli.ok("cp", "here/tree", f"{box}:{guest}/new")
    cli.ok("cp", "here/tree", f"{box}:{guest}")
    (guest / "flat").mkdir()
    cli.ok("cp", "here/tree/.", f"{box}:{guest}/flat")
    assert look(guest / "new") == look(guest / "tree") == look(guest / "flat") == want
    assert "is none" in cli.fails(1, "cp", "here/tree", f"{box}:{guest}/file")
    # And the other way.
    cli.ok("cp", f"{box}:{guest}/file", "out")
    cli.ok("cp", f"{box}:{guest}/file", "here")
    assert (tmp_path / "out").read_text() == (here / "file").read_text() == "newer"
    cli.ok("cp", f"{box}:{guest}/tree", "back")
    (tmp_path / "into").mkdir()
    cli.ok("cp", f"{box}:{guest}/tree", "into")
    cli.ok("cp", f"{box}:{guest}/tree/.", "into")
    assert look(tmp_path / "back") == look(tmp_path / "into/tree") == want
    assert (tmp_path / "into/deep/leaf").exists()
    cli.ok("cp", f"{box}:{guest}/tree/link", "linked")
    assert (tmp_path / "linked").readlink() == Path("deep/leaf")
    cli.ok("cp", "-L", f"{box}:{guest}/tree/link", "followed")
    assert (tmp_path / "followed").read_text() == "leaf"
    assert "No such file" in cli.fails(1, "cp", f"{box}:{guest}/gone", "x")
    assert "is no folder" in cli.fails(1, "cp", f"{box}:{guest}/tree", "out")
    for words in (("a", "b"), (f"{box}:/a", f"{box}:/b")):
        assert "NAME:PATH" in cli.fails(2, "cp", *words)


def test_cp_of_archives(cli: Cli, box: str, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    (tmp_path / "guest").mkdir()
    made = subprocess.run(["tar", "c", "tree"], cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    proc = cli("cp", "-", f"{box}:{tmp_path}/guest", stdin=made.stdout)
    assert proc.returncode == 0, proc.stderr
    assert look(tmp_path / "guest/tree") == look(tmp_path / "tree")
    archive = cli("cp", f"{box}:{tmp_path}/tree", "-")
    assert archive.returncode == 0
    names = subprocess.run(["tar", "t"], input=archive.stdout, capture_output=True, check=True)
    assert b"deep/leaf" in names.stdout
    bad = cli("cp", "-", f"{box}:{tmp_path}/guest", stdin=b"x" * 100000)
    assert bad.returncode == 1 and b"(file_error)" in bad.stderr
    assert "(file_error)" in cli.fails(1, "cp", f"{box}:{tmp_path}/gone", "-")


def test_cp_keeps_a_large_file_whole(cli: Cli, box: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 20
    (tmp_path / "large").write_bytes(data)
    cli.ok("cp", "large", f"{box}:{tmp_path}/copy")
    assert (tmp_path / "copy").read_bytes() == data
    cli.ok("cp", f"{box}:{tmp_path}/copy", "back")
    assert (tmp_path / "back").read_bytes() == data


def test_cp_keeps_owners_if_it_is_to(cli: Cli, box: str, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    os.chown(tmp_path / "tree/tool", 1234, 1235)
    (tmp_path / "guest").mkdir()

    def owner(name: str) -> tuple[int, int]:
        return (tmp_path / name).stat().st_uid, (tmp_path / name).stat().st_gid

    cli.ok("cp", "tree", f"{box}:{tmp_path}/guest/plain")
    cli.ok("cp", "-a", "tree", f"{box}:{tmp_path}/guest/kept")
    cli.ok("cp", "-a", "tree/tool", f"{box}:{tmp_path}/guest/one & only")
    assert owner("guest/plain/tool") == (0, 0)
    assert owner("guest/kept/tool") == owner("guest/one & only") == (1234, 1235)
    cli.ok("cp", f"{box}:{tmp_path}/tree", "plain")
    cli.ok("cp", "-a", f"{box}:{tmp_path}/tree", "kept")
    cli.ok("cp", "-a", f"{box}:{tmp_path}/tree/tool", "one")
    assert owner("plain/tool") == (0, 0)
    assert owner("kept/tool") == owner("one") == (1234, 1235)


def hostile_archive(outside: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, link in (
            ("top/good", ""),
            ("top/../../up", ""),
            (f"top/{outside}/absolute", ""),
            (str(outside / "rooted"), ""),
            ("top/door", str(outside)),
            ("top/door/through", ""),
            ("top/back", "../.."),
            ("top/back/up", ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.SYMTYPE if link else tarfile.REGTYPE
            entry.linkname = link
            entry.size = 0 if link else 4
            tar.addfile(entry, None if link else io.BytesIO(b"evil"))
        device = tarfile.TarInfo("top/device")
        device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
        tar.addfile(device)
        root = tarfile.TarInfo("top/root")
        root.mode, root.uid, root.size = 0o4755, 0, 4
        tar.addfile(root, io.BytesIO(b"evil"))
    return data.getvalue()


class Impostor:
    """What a guest could make of thawd's answers at worst: archives of its own making."""

    def __init__(self, path: Path, archive: bytes) -> None:
        self.archive = archive
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def answer(self, target: str) -> bytes:
        if "/files/tar" in target:
            return self.archive
        return json.dumps(
            {"type": "directory"} if "/files/stat" in target else {"name": "x"}
        ).encode()

    def serve(self) -> None:
        while True:
            peer, _ = self.listener.accept()
            head = b""
            while part := peer.recv(65536):
                head += part
                while b"\r\n\r\n" in head:
                    request, head = head.split(b"\r\n\r\n", 1)
                    body = self.answer(request.split(b" ")[1].decode())
                    size = b"Content-Length: %d\r\n\r\n" % len(body)
                    with contextlib.suppress(OSError):
                        peer.sendall(b"HTTP/1.1 200 OK\r\n" + size + body)
            peer.close()


@pytest.mark.parametrize("options", [[], ["-a"]])
def test_cp_of_a_hostile_archive(tmp_path: Path, options: list[str]) -> None:
    outside, work = tmp_path / "outside", tmp_path / "a/b"
    outside.mkdir()
    work.mkdir(parents=True)
    Impostor(tmp_path / "sock", hostile_archive(outside))
    proc = subprocess.run(
        [str(THAW), "cp", *options, "x:/top", "dest"],
        env={"PATH": os.environ["PATH"], "THAW_SOCKET": str(tmp_path / "sock")},
        cwd=work,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert proc.returncode == 1, proc
    assert not list(outside.iterdir()), list(outside.iterdir())
    assert [path.name for path in work.iterdir()] == ["dest"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (work / "dest/good").read_bytes() == b"evil"
    assert not (work / "dest/device").exists()
    # A mode that gives rights to others comes with -a alone.
    assert bool((work / "dest/root").stat().st_mode & 0o4000) == bool(options)


# Ports


SERVER = (
    "import socket\n"
    "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=1)\n"
    "while 1:\n"
    " c, _ = s.accept(); d = b''\n"
    " while p := c.recv(65536): d += p\n"
    " c.sendall(d[::-1]); c.close()\n"
)


def ask(sock: socket.socket, data: bytes) -> bytes:
    with sock:
        sock.settimeout(WAIT_S)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while part := sock.recv(65536):
                answer += part
    return answer


def test_forward(cli: Cli, box: str) -> None:
    server = cli.popen("exec", box, sys.executable, "-c", SERVER, stdout=subprocess.PIPE)
    assert server.stdout
    port = int(server.stdout.readline())
    forward = cli.popen(
        "forward", box, f"0:{port}", f"./sock:{port}", "0:1", stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert forward.stdout and forward.stderr
    where = [forward.stdout.readline().decode().split(" ->")[0] for _ in range(3)]
    host, number = where[0].split(":")
    big = os.urandom(3 << 20)
    assert ask(socket.create_connection((host, int(number))), big) == big[::-1]
    one = socket.socket(socket.AF_UNIX)
    one.connect(str(cli.folder / "sock"))
    assert ask(one, b"abc") == b"cba"
    # Nobody listens there: the end comes at once, and the reason is told.
    assert ask(socket.create_connection((host, int(where[2].split(":")[1]))), b"x") == b""
    assert b"port_closed" in forward.stderr.readline()
    forward.send_signal(signal.SIGINT)
    assert forward.wait(WAIT_S) == 0 and not (cli.folder / "sock").exists()
    server.send_signal(signal.SIGTERM)
    server.wait(WAIT_S)
    assert "expected PORT" in cli.fails(1, "forward", box, "http")
    assert "can't listen" in cli.fails(1, "forward", box, f"{number}:1", "-b", "::x")


# What is told


def test_stats_and_top(cli: Cli, box: str) -> None:
    stats = cli.json("stats")
    assert [one["name"] for one in stats] == [box] and stats[0]["memory_total_bytes"] > 0
    assert box in cli.ok("stats", "--no-stream", "user")
    cli.ok("exec", "-d", box, "sleep", "987")
    assert eventually(lambda: "sleep 987" in cli.ok("top", box))
    assert any(one["command"].strip() == "sleep 987" for one in cli.json("top", box))


def test_stats_live(cli: Cli, box: str, terminal: Callable[..., Terminal]) -> None:
    term = terminal("stats", "--interval", "50ms")
    # Processor time is known from the second look on.
    assert eventually(lambda: re.search(rb"user-123 +[0-9.]+%", term.until(box.encode())))
    term.process.send_signal(signal.SIGINT)
    assert term.end() == -signal.SIGINT


def test_prune_asks(cli: Cli, terminal: Callable[..., Terminal]) -> None:
    cli.ok("create", "--name", "idle", "debian")
    for answer, names in ((b"n\r", ["idle"]), (b"y\r", [])):
        term = terminal("prune")
        term.until(b"[y/N]")
        term.type(answer)
        assert term.end() == (1 if names else 0)
        assert cli.names("-a") == names


def test_events(cli: Cli, box: str) -> None:
    follow = cli.popen("events", "-f", "-o", "json", "--since", "0", stdout=subprocess.PIPE)
    assert follow.stdout
    first = json.loads(follow.stdout.readline())
    assert (first["type"], first["sandbox"]) == ("sandbox.created", box)
    cli.ok("stop", "-t", "1s", box)
    while json.loads(follow.stdout.readline())["type"] != "sandbox.stopped":
        pass
    follow.kill()
    follow.wait(WAIT_S)
    assert "sandbox.stopped" in cli.ok("events", "--sandbox", box)


def test_pools(cli: Cli) -> None:
    assert cli.ok("pool", "set", "debian", "--size", "1") == "debian\n"
    assert eventually(lambda: cli.json("pool", "ls")[0]["ready"] == 1)
    cli.ok("run", "-d", "--name", "fast", "debian")
    assert cli.json("inspect", "fast")["start"]["pool"] == "hit"
    assert "debian" in cli.ok("pool", "ls")
    cli.ok("pool", "rm", "debian")
    assert cli.json("pool", "ls") == []


def test_a_user_of_the_socket_alone(cli: Cli, box: str) -> None:
    """Who is of its group may ask thawd, and may not look into the state folder."""
    program = cli.daemon.folder / "thaw"
    shutil.copy(THAW, program)
    cli.daemon.folder.chmod(0o711)
    cli.daemon.state.chmod(0o700)
    Path(cli.daemon.socket).chmod(0o666)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(program), *args], env=cli.env, cwd="/", user=65534, group=65534,
            extra_groups=[], capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    assert run("ps", "-q").stdout.split() == [box] and not run("ps").stderr
    assert run("exec", box, "echo", "hi").stdout == "hi\n"
    assert run("run", "debian", "echo", "hi").stdout == "hi\n"
    assert [one["name"] for one in json.loads(run("template", "ls", "-o", "json").stdout)] == [
        "debian"
    ]
    assert "debian" in run("template", "ls").stdout
    assert json.loads(run("template", "inspect", "debian").stdout)["vcpus"] == 1
    gone = run("template", "inspect", "gone")
    assert gone.returncode == 1 and "(not_found)" in gone.stderr
    built = run("template", "build", "mine", "--recipe", "debian")
    assert built.returncode == 0 and "snapshot" in built.stderr, built
    assert run("template", "build", "mine", "--recipe", "debian").returncode == 1
    assert run("template", "rm", "mine").returncode == 0
    assert run("template", "build", "x", "--vcpus", "2").returncode == 2
    Path(cli.daemon.socket).chmod(0o600)
    shut = run("ps")
    assert shut.returncode == 1 and "of the group" in shut.stderr


def test_version(cli: Cli) -> None:
    both = cli.json("version")
    assert both["thaw"] and both["thawd"]["api"] == "v1"
    cli.daemon.stop()
    assert cli.json("version") == {"thaw": both["thaw"], "thawd": None}


def test_a_thawd_that_is_not_there(cli: Cli) -> None:
    cli.daemon.stop()
    for args in (["ps"], ["exec", "a", "true"], ["run", "debian", "true"], ["create", "debian"]):
        assert cli.daemon.socket in cli.fails(125 if args[0] in ("exec", "run") else 1, *args)
    assert cli.ok("run", "--local", "debian", "echo", "alone") == "alone\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 500 No\r\nContent-Length: 35\r\n\r\n{"error":{"code":7,"message":"\x1b[1m"}}',
        b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_a_thawd_that_is_none(cli: Cli, tmp_path: Path, answer: bytes) -> None:
    """Whatever answers there: an error, no hang, nothing of it raw on the terminal."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "x"))
    listener.listen()
    proc = cli.popen("ps", stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    proc.kill()
    proc.communicate()
    cli.env["THAW_SOCKET"] = str(tmp_path / "x")
    proc = cli.popen("ps", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    peer, _ = listener.accept()
    peer.recv(65536)
    peer.sendall(answer)
    peer.close()
    _, said = proc.communicate(timeout=WAIT_S)
    assert proc.returncode == 1 and said and b"\x1b" not in said
