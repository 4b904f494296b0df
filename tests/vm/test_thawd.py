# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by name with real guests: thawd, its machines in their jails, its end and return.

What thawd does without a guest is in tests/native/test_thawd_box.py.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN, Thaw

# Renamed into its place: a reader must not find it empty.
COUNTER = (
    "i=0; while :; do"
    " i=$((i+1)); echo $i > /run/.count; mv /run/.count /run/count; sleep 0.05; done"
)
WAIT_S = 120


def eventually(what: Callable[[], object]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self.path)


class Thawd:
    def __init__(self, folder: Path, template: str) -> None:
        self.socket = str(folder / "thaw.sock")
        self.config = folder / "thaw.conf"
        self.config.write_text(f"socket = {self.socket}\ndefault_template = {template}\n")
        self.log = (folder / "log").open("a+b")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [str(BIN / "thawd"), "--config", str(self.config)],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        assert eventually(self.answers), Path(self.log.name).read_text()

    def answers(self) -> bool:
        assert self.process and self.process.poll() is None, Path(self.log.name).read_text()
        try:
            return self.call("GET", "/healthz")[0] == 200
        except OSError:
            return False

    def end(self, signo: int) -> None:
        assert self.process
        self.process.send_signal(signo)
        self.process.wait(timeout=WAIT_S)

    def call(self, method: str, target: str, value: object = None) -> tuple[int, Any]:
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, target, None if value is None else json.dumps(value))
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        return response.status, json.loads(body) if body else None

    def ok(self, method: str, target: str, value: object = None) -> Any:  # noqa: ANN401
        status, body = self.call(method, f"/v1/sandboxes{target}", value)
        assert status < 300, (status, body)
        return body

    def sh(self, name: str, script: str) -> str:
        result = self.ok("POST", f"/{name}/exec", {"argv": ["sh", "-c", script]})
        assert result["exit_code"] == 0, result
        return result["stdout"]


@pytest.fixture
def thawd(thaw: Thaw, tmp_path: Path) -> Iterator[Thawd]:
    made = Thawd(tmp_path, thaw.template)
    made.start()
    yield made
    if made.process and made.process.poll() is not None:
        made.start()
    for box in made.ok("GET", "")["sandboxes"]:
        made.ok("DELETE", f"/{box['name']}")
    made.end(signal.SIGTERM)
    made.log.close()


def test_a_life(thawd: Thawd) -> None:
    box = thawd.ok("PUT", "/user-123", {"hostname": "h", "pids_max": 200})
    assert box["state"] == "running" and box["size"]["name"] is None
    assert thawd.sh("user-123", "echo one > /root/file; hostname") == "h\n"
    assert thawd.sh("user-123", "cat /root/file") == "one\n"
    assert thawd.ok("GET", "/user-123/stats")["memory_available_bytes"] > 0

    body = {"argv": ["sh", "-c", COUNTER], "detach": True}
    counter = thawd.ok("POST", "/user-123/exec", body)["id"]
    assert eventually(lambda: "1" in thawd.sh("user-123", "cat /run/count || :"))

    assert thawd.ok("POST", "/user-123/pause", {})["state"] == "paused"
    assert thawd.call("POST", "/v1/sandboxes/user-123/exec", {"argv": ["true"]})[0] == 409
    assert thawd.ok("POST", "/user-123/resume", {})["state"] == "running"
    before = int(thawd.sh("user-123", "cat /run/count"))
    assert eventually(lambda: int(thawd.sh("user-123", "cat /run/count")) > before)
    assert thawd.ok("GET", f"/user-123/execs/{counter}")["state"] == "running"

    fork = thawd.ok("POST", "/user-123/fork", {"names": ["clone"]})
    assert fork["forks"][0]["sandbox"]["parent"] == "user-123", fork
    assert thawd.sh("clone", "cat /root/file; echo two > /root/file") == "one\n"
    before = int(thawd.sh("clone", "cat /run/count"))
    assert eventually(lambda: int(thawd.sh("clone", "cat /run/count")) > before)
    assert thawd.sh("user-123", "cat /root/file") == "one\n"

    body = {"argv": ["sh", "-c", "sleep 1; echo after"], "detach": True}
    late = thawd.ok("POST", "/clone/exec", body)["id"]
    machines = {b["name"]: b["id"] for b in thawd.ok("GET", "")["sandboxes"]}
    thawd.end(signal.SIGKILL)
    thawd.start()
    assert {b["name"]: b["id"] for b in thawd.ok("GET", "")["sandboxes"]} == machines
    assert thawd.sh("clone", "cat /root/file") == "two\n"
    assert thawd.ok("GET", f"/clone/execs/{late}/wait?timeout_ms=60000")["exit_code"] == 0
    entries = thawd.ok("GET", f"/clone/execs/{late}/logs")["entries"]
    assert "".join(entry["data"] for entry in entries) == "after\n"

    stopped = thawd.ok("POST", "/clone/stop", {"grace_ms": 5000, "reason": "done"})
    assert stopped["stop"]["reason"] == "stopped" and stopped["stop"]["message"] == "done"


def test_it_stops_with_its_entrypoint_and_its_time(thawd: Thawd) -> None:
    thawd.ok("PUT", "/once", {"entrypoint": ["sh", "-c", "exit $N"], "env": {"N": "5"}})
    ended = thawd.ok("GET", f"/once/wait?timeout_ms={WAIT_S * 1000}")
    assert ended["stop"]["reason"] == "exited" and ended["stop"]["exit_code"] == 5
    box = thawd.ok("PUT", "/timed", {"hard_timeout_ms": 3000})
    thawd.end(signal.SIGKILL)
    run = Path(os.environ.get("THAW_STATE", "/var/lib/thaw")) / "run" / box["id"]
    pid = int((run / "pid").read_text().split()[0])
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    thawd.start()
    assert thawd.ok("GET", "/timed")["stop"]["reason"] == "hard_timeout"
