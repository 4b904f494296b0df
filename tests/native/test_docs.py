# SPDX-License-Identifier: Apache-2.0
"""Every command line of README.md, docs/api.md, docs/operating.md and of the man pages' EXAMPLES is
executed, by somebody.

Here they run against a real thawd with stand-in machines; the two pages of docs/ with the settings
that are in them, a systemctl that starts and stops this thawd, folders and ports of the test's own.
A line that can't has another runner in ELSEWHERE; one that nobody claims fails. Man pages and
completions also have to name every option.
"""

from __future__ import annotations

import grp
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from daemon import (  # noqa: F401
    MACHINE,
    THAW,
    THAWD,
    TOP,
    Thawd,
    fresh_thawd,
    needs_thawd,
    remove_thawd,
    thawd,
)
from test_pack import Host
from test_thawd_ports import free_port

MAN = TOP / "docs/man"
DOCS = ("api.md", "operating.md")
WAIT_S = 120

# Lines that are not executed here, and who does it.
ELSEWHERE = {
    "make demo": "CI: the whole of it",
    "make test": "CI: the whole of it",
    "thawd &": "the fixture of these tests",
    "thaw template export py - | ssh host thaw template import -": "test_to_another_machine()",
    # These change the machine: tests/package installs, upgrades and removes the packages.
    "make deb": "tests/package",
    "apt install ./build/deb/*.deb": "tests/package",
    "make install PREFIX=/usr/local UNITDIR=/etc/systemd/system": "tests/package, by make deb",
    "systemd-sysusers && systemd-tmpfiles --create": "tests/package, by the package's postinst",
    "systemctl daemon-reload && systemctl enable --now thawd": "tests/package, likewise",
    "journalctl -u thawd -n 50": "tests/package",
}
# Whose exit status says what this machine has, not whether they work.
ANY_STATUS = {"thaw doctor"}
# A page about another program than thaw: its own tests run it.
OTHER_PROGRAMS = {"thaw-vmm", "thawd", "thaw.conf", "thaw-files"}


@dataclass
class Block:
    """Lines that are one script."""

    source: str
    lines: list[str]


def roff_text(line: str) -> str:
    for old, new in (("\\&", ""), ("\\-", "-"), ("\\(aq", "'"), ("\\(dq", '"'), ("\\e", "\\")):
        line = line.replace(old, new)
    return line


def man_blocks(path: Path) -> list[Block]:
    blocks = []
    for text in re.findall(r"^\.SH EXAMPLES\n(.*?)(?=^\.SH |\Z)", path.read_text(), re.M | re.S):
        for part in re.findall(r"^\.(?:nf|EX)\n(.*?)^\.(?:fi|EE)$", text, re.M | re.S):
            blocks.append(Block(path.name, [roff_text(line) for line in part.splitlines()]))
    return blocks


def readme_blocks(path: Path) -> list[Block]:
    """Blocks of pages in docs/ say their language: only those of sh are command lines."""
    text = path.read_text()
    if path.parent.name == "docs":
        parts = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
        return [Block(path.name, part.splitlines()) for part in parts]
    parts = re.findall(r"^```(?:sh|console)?\n(.*?)^```$", text, re.M | re.S)
    # Pictures are no command lines.
    return [Block(path.name, part.splitlines()) for part in parts if "┌" not in part]


def all_blocks() -> list[Block]:
    blocks = readme_blocks(TOP / "README.md")
    for name in DOCS:
        blocks += readme_blocks(TOP / "docs" / name)
    for path in sorted(MAN.glob("*.1")):
        if path.stem not in OTHER_PROGRAMS:
            blocks += man_blocks(path)
    return blocks


def strip_comment(line: str) -> str:
    return re.sub(r"\s+# .*$", "", line).rstrip()


BLOCKS = all_blocks()
PAGES = sorted({block.source for block in BLOCKS})


def test_there_is_something() -> None:
    assert len(BLOCKS) > 20 and sum(len(block.lines) for block in BLOCKS) > 90
    assert "README.md" in PAGES


class Typist:
    """A terminal as standard input: whenever a shell in it asks, its answer is exit."""

    PROMPT = re.compile(rb"[#$] $")

    def __init__(self, script: str, env: dict[str, str], cwd: Path) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["bash", "-c", script],
            env=env,
            cwd=cwd,
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(slave)
        self.output = b""

    def run(self) -> int:
        """Return: exit status."""
        assert self.process.stdout
        out = self.process.stdout.fileno()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if not select.select([out], [], [], 1)[0]:
                continue
            data = os.read(out, 65536)
            if not data:
                return self.process.wait(WAIT_S)
            self.output += data
            if self.PROMPT.search(self.output):
                os.write(self.master, b"exit\r")
        raise AssertionError(f"still running after {WAIT_S} s: {self.output.decode()}")

    def close(self) -> None:
        # What was started behind the script's back ends with its session.
        for child in Path("/proc").glob("[0-9]*"):
            try:
                session = int((child / "stat").read_text().rsplit(")", 1)[1].split()[3])
            except (OSError, IndexError):
                continue
            if session == self.process.pid:
                os.kill(int(child.name), signal.SIGKILL)
        self.process.wait(WAIT_S)
        os.close(self.master)


@pytest.fixture
def daemon() -> Iterator[Thawd]:
    made = fresh_thawd("inactivity_timeout = 1h")
    try:
        yield made.start()
    finally:
        remove_thawd(made)


def script_of(blocks: list[Block]) -> tuple[str, list[str]]:
    """A shell script that names each line that it is at; lines left to others."""
    script, left = [], []
    for block in blocks:
        for line in block.lines:
            if strip_comment(line) in ELSEWHERE:
                left.append(strip_comment(line))
            elif strip_comment(line) in ANY_STATUS:
                script.append(f"{strip_comment(line)} || [ $? = 1 ]")
            else:
                script.append(line)
    head = "set -eE\ntrap 'echo \"FAILED: $BASH_COMMAND (status $?)\"' ERR\n"
    return head + "\n".join(script) + "\n", left


def environment(daemon: Thawd, folder: Path) -> dict[str, str]:
    tools = folder / "bin"
    tools.mkdir()
    (tools / "thaw").symlink_to(THAW)
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TERM": "dumb",
        "THAW_SOCKET": daemon.socket,
        "THAW_STATE": str(daemon.state),
        "THAW_VMM": str(MACHINE),
        "THAW_GUEST_DIR": str(daemon.guest),
        "THAW_RECIPES": str(TOP / "snapshots/recipes"),
        "PS1": "$ ",
    }


# A systemctl for one thawd: like the unit's, start and restart return when it serves.
SYSTEMCTL = """#!/bin/bash
set -e
[ "$2" = thawd ]
end() { kill "$(cat pid)"; while [ -e "/proc/$(cat pid)" ]; do sleep 0.01; done; }
begin() {
    THAWD --config etc/thaw.conf >>log 2>&1 </dev/null &
    echo $! >pid
    until curl -sf --unix-socket SOCKET http://thaw/healthz >/dev/null; do
        kill -0 "$(cat pid)" || { cat log; exit 1; }
        sleep 0.01
    done
}
cd FOLDER
case $1 in
start) begin ;;
stop) end ;;
restart) [ ! -e pid ] || end; begin ;;
reload) kill -HUP "$(cat pid)" ;;
*) exit 1 ;;
esac
"""


class Installed:
    """A thawd as the pages of docs/ take it to be: systemctl starts it, with their settings."""

    def __init__(self, page: str, folder: Path) -> None:
        self.thawd = fresh_thawd()
        self.folder = folder
        self.places = {
            "/run/thaw/thaw.sock": self.thawd.socket,
            "/etc/thaw": str(folder / "etc"),
            "/var/log/thaw": str(folder / "log.d"),
            "/var/backups": str(folder / "backups"),
            "/var/lib/thaw": str(self.thawd.state),
            "-C /var/lib ": f"-C {self.thawd.state.parent} ",
            "/thaw.tar thaw": f"/thaw.tar {self.thawd.state.name}",
            "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
            "127.0.0.1:8090": f"127.0.0.1:{free_port()}",
            "18081": str(free_port()),
        }
        for name in ("etc", "log.d", "backups"):
            (folder / name).mkdir()
        (folder / "etc/token").write_text("0123456789abcdef0123456789abcdef\n")
        (folder / "etc/token").chmod(0o600)
        text = (TOP / "docs" / page).read_text()
        settings = "".join(re.findall(r"^```ini\n(.*?)^```$", text, re.M | re.S))
        head = f"socket = {self.thawd.socket}\njail = off\n"
        group = f"socket_group = {grp.getgrgid(0).gr_name}"
        settings = self.here(settings).replace("socket_group = thaw", group)
        (folder / "etc/thaw.conf").write_text(head + settings)

    def here(self, text: str) -> str:
        for old, new in self.places.items():
            text = text.replace(old, new)
        return text

    def environment(self) -> dict[str, str]:
        env = environment(self.thawd, self.folder)
        tools = self.folder / "bin"
        (tools / "thawd").symlink_to(THAWD)
        script = SYSTEMCTL.replace("THAWD", str(THAWD)).replace("FOLDER", str(self.folder))
        (tools / "systemctl").write_text(script.replace("SOCKET", self.thawd.socket))
        (tools / "systemctl").chmod(0o755)
        return {**self.thawd.env, **env}


@pytest.fixture
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installed]:
    made = Installed(request.param, tmp_path)
    try:
        yield made
    finally:
        print((tmp_path / "log").read_text() if (tmp_path / "log").exists() else "no log")
        remove_thawd(made.thawd)


@pytest.mark.parametrize(
    ("installed", "page"), [(name, name) for name in DOCS], indirect=["installed"]
)
def test_every_line_of_docs_works(page: str, installed: Installed, tmp_path: Path) -> None:
    if any(mark.args[0] for mark in needs_thawd):
        pytest.skip(next(mark.kwargs["reason"] for mark in needs_thawd if mark.args[0]))
    script, _ = script_of([block for block in BLOCKS if block.source == page])
    script = "systemctl start thawd\n" + installed.here(script)
    if "template build debian\n" in script:
        subprocess.run(["rm", "-rf", str(installed.thawd.state / "templates/debian")], check=True)
    typist = Typist(script, installed.environment(), tmp_path)
    try:
        status = typist.run()
    finally:
        typist.close()
    assert status == 0 and b"FAILED" not in typist.output, typist.output.decode()


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("page", [page for page in PAGES if page not in DOCS])
def test_every_line_works(page: str, daemon: Thawd, tmp_path: Path) -> None:
    if any(mark.args[0] for mark in needs_thawd):
        pytest.skip(next(mark.kwargs["reason"] for mark in needs_thawd if mark.args[0]))
    script, _ = script_of([block for block in BLOCKS if block.source == page])
    (tmp_path / "work").mkdir()
    (tmp_path / "work/README.md").write_text("# readme\n")
    if "template build debian" in script:
        subprocess.run(["rm", "-rf", str(daemon.state / "templates/debian")], check=True)
    typist = Typist(script, environment(daemon, tmp_path), tmp_path / "work")
    try:
        status = typist.run()
    finally:
        typist.close()
    assert status == 0 and b"FAILED" not in typist.output, typist.output.decode()


def test_to_another_machine(tmp_path: Path) -> None:
    """The one line that needs a template whose digests are right, and a second machine."""
    (line,) = [line for line in ELSEWHERE if "ssh" in line]
    host = Host(tmp_path / "here")
    host.make_one("py")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "thaw").symlink_to(THAW)
    ssh = f'#!/bin/sh\n[ "$1" = host ] && shift\nTHAW_STATE={tmp_path}/there exec "$@"\n'
    (tools / "ssh").write_text(ssh)
    (tools / "ssh").chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "THAW_STATE": str(host.state)}
    subprocess.run(["bash", "-o", "pipefail", "-ec", line], env=env, timeout=WAIT_S, check=True)
    assert (tmp_path / "there/templates/py/memory").exists()


def test_who_else_runs_lines() -> None:
    """Whatever is left to others is there, so that the list can't grow old."""
    _, left = script_of(BLOCKS)
    assert sorted(set(left)) == sorted(ELSEWHERE)


# Options


def commands(group: str = "") -> list[str]:
    """Words of every command, with those of groups: "template build"."""
    text = subprocess.run(
        [str(THAW), *group.split(), "help"], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for name in re.findall(r"^  ([a-z]+) ", text.split("Commands:")[1], re.M):
        full = f"{group} {name}".strip()
        found += commands(full) if name in ("template", "snapshot") else [full]
    return found


def options(command: str) -> set[str]:
    text = subprocess.run(
        [str(THAW), *command.split(), "--help"], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"^  (?:-\w, |    )(--[a-z-]+)", text, re.M)) - {"--help"}


COMMANDS = [*commands(), "pool set", "pool ls", "pool rm"] if THAW.exists() else []


@pytest.mark.parametrize("command", COMMANDS)
def test_manual_names_every_option(command: str) -> None:
    page = MAN / f"thaw-{command.split()[0]}.1"
    if page.read_text().count(".so "):
        page = MAN / page.read_text().split(".so man1/")[1].strip()
    text = roff_text(page.read_text())
    assert command.split()[-1] in text
    missing = {name for name in options(command) if name not in text}
    assert not missing, f"{page.name} says nothing about them"


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "thaw.bash"), ("zsh", "_thaw"), ("fish", "thaw.fish")]
)
def test_completions_are_in_step(shell: str, name: str) -> None:
    made = subprocess.run([str(THAW), "completion", shell], capture_output=True, check=True).stdout
    kept = TOP / "completions" / name
    assert kept.read_bytes() == made, f"thaw completion {shell} > completions/{name}"
    for command in COMMANDS:
        for option in options(command):
            assert option.removeprefix("--").encode() in made, (command, option)


def complete(*words: str, **env: str) -> list[str]:
    script = (
        'source completions/thaw.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_thaw; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    proc = subprocess.run(
        ["bash", "-c", script, "bash", str(THAW), *words],
        cwd=TOP,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not proc.stderr, proc.stderr
    return proc.stdout.split()


def test_bash_completes() -> None:
    assert complete("cre") == ["create"] and complete("snapshot", "l") == ["ls"]
    assert complete("create", "--si") == ["--size"]
    assert complete("create", "--size", "b") == ["basic"]
    assert complete("run", "debian", "--huge", "") == ["none", "thp"]
    assert complete("template", "build", "--recorder", "") == ["pagemap", "bpf"]
    assert complete("pool", "set", "--si") == ["--size"]
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("run", "debian", "--", "--si") == []
    assert complete("exec", "-e", "MY_V", MY_VARIABLE="1") == ["MY_VARIABLE"]


@pytest.mark.skipif(any(mark.args[0] for mark in needs_thawd), reason="needs thawd and root")
def test_bash_completes_names(thawd: Thawd) -> None:  # noqa: F811
    for name in ("user-1", "user-2", "other"):
        thawd.create(name, start=False)
    env = {"THAW_SOCKET": thawd.socket, "THAW_STATE": str(thawd.state)}
    assert sorted(complete("rm", "us", **env)) == ["user-1", "user-2"]
    assert complete("run", "de", **env) == ["debian"]
