# SPDX-License-Identifier: Apache-2.0
"""A hundred sandboxes at once, a thousand operations of all kinds, and nothing is left of them.

Most sandboxes are one client's at a time, with a model beside them: what each call must answer,
what each file must hold and which events must come is known. The others are everybody's: there a
call may find its sandbox gone (404) or in another state (409), or lose it in its midst (502), but
only when somebody ended it in that very moment. Nothing is ever 500.

THAW_TEST_OPERATIONS, THAW_TEST_SEED: more of them, others.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import random
import shutil
import sqlite3
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from api_client import Answer, Stream
from daemon import Thawd, eventually, fresh_thawd, needs_thawd, remove_thawd

pytestmark = needs_thawd

SEED = int(os.environ.get("THAW_TEST_SEED", "7"))
OPERATIONS = int(os.environ.get("THAW_TEST_OPERATIONS", "1000"))
CLIENTS = 32
OWNED, SHARED = 84, 16
CONFIG = ("max_vcpus = 1000", "max_memory = 1000GiB", "memory_pressure_max = 100")
SIZES = [0, 1, 4096, 50_000, 400_000]


class Echo(BaseHTTPRequestHandler):
    """The server "in" every sandbox."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.path.encode() + b" " + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Box:
    """A sandbox and what is known of it."""

    name: str
    folder: Path  # its files: a stand-in's guest sees the disk of this machine
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: str = "absent"
    labels: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    execs: dict[str, str] = field(default_factory=dict)  # id: output, of detached ones
    started: set[str] = field(default_factory=set)  # ids of all execs
    events: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.name}"

    def ended_and_deleted(self) -> None:
        self.events += ["deleted"] if self.state == "stopped" else ["stopped", "deleted"]

    def forget_disk(self) -> None:
        self.files.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


class Watcher:
    """All events, by sandbox."""

    def __init__(self, thawd: Thawd) -> None:
        self.stream: Stream = thawd.api.stream("GET", "/v1/events", timeout_s=600)
        assert self.stream.status == 200
        self.lives: dict[str, list[str]] = {}
        self.execs: dict[str, Counter[str]] = {}
        self.gaps = 0
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for event in self.stream.events():
                if event.name == "gap":
                    self.gaps += 1
                    continue
                name = event.data["sandbox"]
                if event.name.startswith("sandbox."):
                    self.lives.setdefault(name, []).append(event.name.removeprefix("sandbox."))
                elif event.name.startswith("exec."):
                    self.execs.setdefault(event.name, Counter())[event.data["details"]["id"]] += 1

    def close(self) -> None:
        sock = self.stream.connection.sock
        if sock:
            with contextlib.suppress(OSError):
                sock.shutdown(2)
        self.thread.join()
        self.stream.close()


class Client:
    """Operations on one box whose lock is held: each knows what must come of it."""

    def __init__(self, thawd: Thawd, port: int, dice: random.Random) -> None:
        self.thawd, self.port, self.dice = thawd, port, dice

    def token(self) -> str:
        return f"{self.dice.getrandbits(64):016x}"

    def call(
        self,
        box: Box,
        method: str,
        rest: str,
        value: object = None,
        *,
        ok: int = 200,
        states: tuple[str, ...] = ("running",),
        **more: Any,  # noqa: ANN401
    ) -> Answer | None:
        """Return: the answer; None: it was refused, as it had to be in the box's state."""
        answer = self.thawd.api.call(method, box.path + rest, value, **more)
        fits = box.state in states
        want = ok if fits else 404 if box.state == "absent" else 409
        text = (method, box.path + rest, value, box.state, answer.status, answer.body[:500])
        assert answer.status == want, text
        if fits:
            return answer
        assert answer.code == ("not_found" if want == 404 else "wrong_state"), text
        return None

    # Lives.

    def create(self, box: Box) -> None:
        box.labels = {"n": self.token()}
        answer = self.thawd.api.call("PUT", box.path, {"labels": box.labels})
        assert answer.status == 201, answer.body
        made = answer.json
        assert (made["name"], made["state"], made["labels"]) == (box.name, "running", box.labels)
        again = self.thawd.api.call("PUT", box.path, {"labels": box.labels})
        assert again.status == 200 and again.json["id"] == made["id"]
        box.state = "running"
        box.execs.clear()
        box.events += ["created", "started"]

    def delete(self, box: Box) -> None:
        assert self.thawd.api.call("DELETE", box.path).status == 204
        if box.state != "absent":
            box.ended_and_deleted()
        box.state = "absent"
        box.forget_disk()
        self.inspect(box)
        self.exec(box)
        if self.dice.random() < 0.7:
            self.create(box)

    def stop(self, box: Box) -> None:
        verb, body = self.dice.choice([("stop", {"grace_ms": 50}), ("destroy", {})])
        states = ("running", "stopped", "paused")
        answer = self.call(box, "POST", f"/{verb}", {**body, "reason": "why"}, states=states)
        if not answer:
            return
        assert answer.json["state"] == "stopped"
        if box.state != "stopped":
            reason = "stopped" if verb == "stop" else "destroyed"
            stop = answer.json["stop"]
            assert (stop["reason"], stop["message"]) == (reason, "why")
            box.events.append("stopped")
        box.state = "stopped"
        box.forget_disk()

    def start(self, box: Box) -> None:
        if not self.call(box, "POST", "/start", {}, states=("stopped",)):
            return
        box.state = "running"
        box.events.append("started")
        box.execs.clear()
        self.exec(box)

    def pause(self, box: Box) -> None:
        if not self.call(box, "POST", "/pause", {}):
            return
        box.state = "paused"
        box.events.append("paused")
        self.exec(box)
        if self.dice.random() < 0.6:
            self.resume(box)

    def resume(self, box: Box) -> None:
        answer = self.call(box, "POST", "/resume", {}, states=("paused",))
        if answer:
            box.state = "running"
            box.events.append("resumed")
            self.exec(box)

    def live(self, box: Box) -> None:
        """Go on to where most can be done."""
        change = {"absent": self.create, "stopped": self.start, "paused": self.resume}
        change.get(box.state, self.stop)(box)

    def fork(self, box: Box) -> None:
        name = f"{box.name}-f"
        answer = self.call(box, "POST", "/fork", {"names": [name], "labels": {"fork": ""}})
        if not answer:
            return
        box.events.append("forked")
        (fork,) = answer.json["forks"]
        assert fork["sandbox"]["parent"] == box.name and fork["sandbox"]["state"] == "running"
        clone = Box(name, box.folder / "none", state="running")
        self.exec(clone)
        assert self.thawd.api.call("DELETE", clone.path).status == 204
        self.exec(box)

    def snapshot(self, box: Box) -> None:
        name = f"{box.name}-s"
        made = self.call(box, "POST", "/snapshots", {"name": name}, ok=201)
        if not made:
            return
        api = self.thawd.api
        listed = api.call("GET", f"/v1/snapshots?sandbox={box.name}").json["snapshots"]
        assert listed == [made.json]
        clone = Box(name, box.folder / "none", state="running")
        answer = api.call("PUT", clone.path, {"snapshot": name})
        assert answer.status == 201 and answer.json["snapshot"] == made.json["id"], answer.body
        self.exec(clone)
        refused = api.call("DELETE", f"/v1/snapshots/{name}")
        assert refused.status == 409
        assert refused.json["error"]["details"]["dependents"] == [name]
        assert api.call("DELETE", clone.path).status == 204
        assert api.call("DELETE", f"/v1/snapshots/{name}").status == 204
        assert api.call("GET", f"/v1/snapshots/{name}").status == 404

    # Looking.

    def inspect(self, box: Box) -> None:
        answer = self.call(box, "GET", "", states=("running", "stopped", "paused"))
        if answer:
            assert (answer.json["state"], answer.json["labels"]) == (box.state, box.labels)

    def list(self, box: Box) -> None:
        listed = self.thawd.api.call("GET", "/v1/sandboxes?limit=1000").json["sandboxes"]
        states = {entry["name"]: entry["state"] for entry in listed}
        assert states.get(box.name, "absent") == box.state
        if box.state != "absent":
            query = f"/v1/sandboxes?label=n={box.labels['n']}"
            found = self.thawd.api.call("GET", query).json["sandboxes"]
            assert [entry["name"] for entry in found] == [box.name]

    def wait(self, box: Box) -> None:
        states = ("running", "stopped", "paused")
        answer = self.call(box, "GET", "/wait?timeout_ms=1", states=states)
        if answer:
            assert answer.json["running"] == (box.state != "stopped")

    def patch(self, box: Box) -> None:
        labels = {"n": self.token(), "more": "x"}
        value = {"labels": labels, "inactivity_timeout_ms": self.dice.randrange(600_000, 900_000)}
        answer = self.call(box, "PATCH", "", value, states=("running", "stopped", "paused"))
        if answer:
            box.labels = labels
            assert answer.json["inactivity_timeout_ms"] == value["inactivity_timeout_ms"]
            self.inspect(box)

    def touch(self, box: Box) -> None:
        self.call(box, "POST", "/touch", {}, ok=204)

    def stats(self, box: Box) -> None:
        answer = self.call(box, "GET", "/stats")
        assert not answer or answer.json["processes"] >= 0

    # Commands.

    def exec(self, box: Box) -> None:
        text, code = self.token(), self.dice.choice([0, 0, 3])
        script = f"cat; echo {text[::-1]} >&2; exit {code}"
        body = {"argv": ["sh", "-c", script], "stdin": text, "timeout_ms": 60000}
        answer = self.call(box, "POST", "/exec", body)
        if answer:
            got = answer.json
            assert (got["stdout"], got["stderr"]) == (text, f"{text[::-1]}\n"), got
            assert (got["exit_code"], got["signal"], got["truncated"]) == (code, None, False), got
            box.started.add(got["id"])

    def exec_events(self, box: Box) -> None:
        if box.state != "running":
            return self.exec(box)
        text, count = self.token(), self.dice.randrange(1, 2000)
        body = {"argv": ["sh", "-c", f"for i in $(seq {count}); do echo {text}; done"]}
        headers = {"Accept": "text/event-stream"}
        out, last = b"", None
        with self.thawd.api.stream("POST", f"{box.path}/exec", body, headers=headers) as stream:
            assert stream.status == 200
            for event in stream.events():
                if event.name == "stdout":
                    assert event.data["cursor"] == len(out)
                    out += base64.b64decode(event.data["data"])
                elif event.name == "start":
                    box.started.add(event.data["id"])
                last = event
        assert out == f"{text}\n".encode() * count
        assert last and last.name == "exit" and last.data["exit_code"] == 0
        return None

    def detached(self, box: Box) -> None:
        text = self.token()
        script = f"echo {text}; echo {text} >&2; exit 5"
        answer = self.call(
            box, "POST", "/exec", {"argv": ["sh", "-c", script], "detach": True}, ok=202
        )
        if not answer:
            return
        ident = answer.json["id"]
        box.started.add(ident)
        ended = self.call(box, "GET", f"/execs/{ident}/wait?timeout_ms=60000")
        assert ended and (ended.json["state"], ended.json["exit_code"]) == ("ended", 5)
        box.execs[ident] = f"{text}\n" * 2
        self.logs(box, ident)
        if self.dice.random() < 0.3:
            self.call(box, "DELETE", f"/execs/{ident}", ok=204)
            del box.execs[ident]
            assert self.thawd.api.call("GET", f"{box.path}/execs/{ident}").status == 404

    def background(self, box: Box) -> None:
        """One that goes on until it is killed."""
        text = self.token()
        body = {"argv": ["sh", "-c", f"echo {text}; exec sleep 1000"], "detach": True}
        answer = self.call(box, "POST", "/exec", body, ok=202)
        if not answer:
            return
        path = f"/execs/{answer.json['id']}"
        box.started.add(answer.json["id"])
        found = self.call(box, "POST", f"{path}/wait-for-log", {"text": text, "timeout_ms": 60000})
        assert found and found.json["matched"] and found.json["line"] == text
        self.call(box, "POST", f"{path}/kill", {}, ok=204)
        ended = self.call(box, "GET", f"{path}/wait?timeout_ms=60000")
        assert ended and ended.json["signal"] == "SIGKILL" and ended.json["exit_code"] == 137
        box.execs[answer.json["id"]] = f"{text}\n"

    def logs(self, box: Box, ident: str | None = None) -> None:
        """Of one that ended, also after its sandbox has stopped."""
        if not ident and (not box.execs or box.state not in ("running", "stopped")):
            return self.exec(box)
        ident = ident or self.dice.choice(sorted(box.execs))
        states = ("running", "stopped")
        answer = self.call(box, "GET", f"/execs/{ident}/logs", states=states)
        assert answer and answer.json["ended"] and not answer.json["dropped_bytes"]
        entries = answer.json["entries"]
        assert "".join(entry["data"] for entry in entries) == box.execs[ident], entries
        execs = self.call(box, "GET", "/execs", states=states)
        assert execs and set(box.execs) <= {entry["id"] for entry in execs.json["execs"]}
        return None

    # Files.

    def at(self, box: Box, name: str = "") -> str:
        return f"path={box.folder}/{name}"

    def mkdir(self, box: Box) -> None:
        body = {"path": str(box.folder), "recursive": True}
        self.call(box, "POST", "/files/mkdir", body, ok=204)

    def write(self, box: Box) -> None:
        self.mkdir(box)
        name = f"f{self.dice.randrange(6)}"
        data = self.dice.randbytes(self.dice.choice(SIZES))
        append = name in box.files and self.dice.random() < 0.3
        query = f"{self.at(box, name)}&mode=0640" + ("&append=1" if append else "")
        answer = self.call(box, "PUT", f"/files?{query}", body=data)
        if answer:
            assert answer.json == {"size_bytes": len(data)}
            box.files[name] = box.files[name] + data if append else data
            self.read(box, name)

    def read(self, box: Box, name: str | None = None) -> None:
        name = name or f"f{self.dice.randrange(6)}"
        target = f"/files?{self.at(box, name)}"
        if box.state == "running" and name not in box.files:
            answer = self.call(box, "GET", target, ok=404)
            assert answer and answer.json["error"]["details"]["errno"] == "ENOENT"
            return
        answer = self.call(box, "GET", target)
        if not answer:
            return
        data = box.files[name]
        assert answer.body == data
        if len(data) > 10:
            part = self.call(box, "GET", target, ok=206, headers={"Range": "bytes=3-9"})
            assert part and part.body == data[3:10]

    def stat(self, box: Box) -> None:
        if box.state == "running" and not box.files:
            return self.write(box)
        name = self.dice.choice(sorted(box.files) or ["none"])
        answer = self.call(box, "GET", f"/files/stat?{self.at(box, name)}")
        if answer:
            got = answer.json
            size_bytes = len(box.files[name])
            assert (got["type"], got["size_bytes"], got["mode"]) == ("file", size_bytes, 0o640)
        return None

    def list_files(self, box: Box) -> None:
        self.mkdir(box)
        answer = self.call(box, "GET", f"/files/list?{self.at(box)}")
        if answer:
            got = {entry["name"]: entry["size_bytes"] for entry in answer.json["entries"]}
            assert got == {name: len(data) for name, data in box.files.items()}

    def tar(self, box: Box) -> None:
        self.mkdir(box)
        packed = io.BytesIO()
        new = {f"f{i}": self.dice.randbytes(self.dice.choice(SIZES[:4])) for i in range(3)}
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, data in new.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), 0o640
                archive.addfile(info, io.BytesIO(data))
        answer = self.call(box, "PUT", f"/files/tar?{self.at(box)}", body=packed.getvalue())
        if not answer:
            return
        assert answer.json["entries"] == 3 and not answer.json["warnings"], answer.json
        box.files.update(new)
        answer = self.call(box, "GET", f"/files/tar?{self.at(box)}")
        assert answer
        got = {}
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
            for member in archive:
                if member.isfile():
                    source = archive.extractfile(member)
                    assert source
                    got[Path(member.name).name] = source.read()
        assert got == box.files

    def remove(self, box: Box) -> None:
        if not box.files:
            return self.write(box)
        name = self.dice.choice(sorted(box.files))
        body = {"path": f"{box.folder}/{name}"}
        if self.call(box, "POST", "/files/remove", body, ok=204):
            del box.files[name]
            self.read(box, name)
        return None

    # Ports.

    def proxy(self, box: Box) -> None:
        text = self.token()
        answer = self.call(
            box, "POST", f"/ports/{self.port}/a/{text}?b=c", body=text.encode(), check=False
        )
        if answer:
            assert answer.body == f"/a/{text}?b=c {text}".encode()

    def closed_port(self, box: Box) -> None:
        answer = self.call(box, "GET", "/ports/1/", ok=502)
        assert not answer or answer.code == "port_closed"

    def wait_port(self, box: Box) -> None:
        answer = self.call(box, "POST", f"/ports/{self.port}/wait", {"timeout_ms": 60000})
        assert not answer or answer.json["open"]


WEIGHTS: dict[str, int] = {
    "exec": 14, "exec_events": 4, "detached": 7, "background": 4, "logs": 5,
    "write": 10, "read": 8, "stat": 4, "list_files": 4, "tar": 5, "remove": 3,
    "inspect": 6, "list": 3, "wait": 3, "patch": 5, "touch": 5, "stats": 3,
    "proxy": 6, "closed_port": 2, "wait_port": 2,
    "fork": 2, "snapshot": 2, "pause": 3, "resume": 2, "stop": 3, "start": 2, "delete": 4,
}  # fmt: skip

# Of sandboxes that are everybody's: what is sent, what it answers when nobody is in the way.
EVERYBODYS: dict[str, tuple[str, str, object, tuple[int, ...]]] = {
    "create": ("PUT", "", {}, (200, 201)),
    "inspect": ("GET", "", None, (200,)),
    "exec": ("POST", "/exec", {"argv": ["sh", "-c", "echo x"]}, (200,)),
    "sleep": ("POST", "/exec", {"argv": ["sleep", "0.2"]}, (200,)),
    "detached": ("POST", "/exec", {"argv": ["sleep", "100"], "detach": True}, (202,)),
    "execs": ("GET", "/execs", None, (200,)),
    "write": ("PUT", "/files?path=/dev/null", None, (200,)),
    "list_files": ("GET", "/files/list?path=/etc", None, (200,)),
    "touch": ("POST", "/touch", {}, (204,)),
    "patch": ("PATCH", "", {"keep_alive": False}, (200,)),
    "pause": ("POST", "/pause", {}, (200,)),
    "resume": ("POST", "/resume", {}, (200,)),
    "snapshot": ("POST", "/snapshots", {}, (201,)),
    "fork": ("POST", "/fork", {"count": 1}, (200,)),
    "stop": ("POST", "/stop", {"grace_ms": 10}, (200,)),
    "destroy": ("POST", "/destroy", {}, (200,)),
    "start": ("POST", "/start", {}, (200,)),
    "delete": ("DELETE", "", None, (204,)),
}
OFTEN = ["create", "exec", "exec", "write", "sleep", "inspect"]
ENDERS = {"pause", "stop", "destroy", "delete"}


@dataclass
class Done:
    """A call to a sandbox that is everybody's."""

    name: str
    verb: str
    begin: float
    end: float
    answer: Answer


class Load:
    def __init__(self, thawd: Thawd, port: int, folder: Path) -> None:
        self.thawd, self.port = thawd, port
        self.owned = [Box(f"box-{i}", folder / f"box-{i}") for i in range(OWNED)]
        self.shared = [f"any-{i}" for i in range(SHARED)]
        self.left = OPERATIONS
        self.lock = threading.Lock()
        self.done: list[Done] = []
        self.counts: Counter[str] = Counter()

    def fill(self) -> None:
        client = Client(self.thawd, self.port, random.Random(SEED))
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client.create, self.owned))
            list(pool.map(self.thawd.create, self.shared))
        assert len(self.thawd.machines()) == OWNED + SHARED

    def next(self) -> bool:
        with self.lock:
            self.left -= 1
            return self.left >= 0

    def work(self, number: int) -> None:
        dice = random.Random(f"{SEED}.{number}")
        client = Client(self.thawd, self.port, dice)
        while self.next():
            if dice.random() < 0.2:
                self.everybodys(dice)
            else:
                self.one(client, dice)

    def one(self, client: Client, dice: random.Random) -> None:
        box = dice.choice(self.owned)
        verb = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        with box.lock:
            if box.state != "running" and dice.random() < 0.5:
                verb = "live"
            operation: Callable[[Box], None] = getattr(client, verb)
            operation(box)
        with self.lock:
            self.counts[verb] += 1

    def everybodys(self, dice: random.Random) -> None:
        name, verb = dice.choice(self.shared), dice.choice([*EVERYBODYS, *OFTEN])
        method, rest, value, _ = EVERYBODYS[verb]
        begin = time.monotonic()
        body = b"x" * 10000 if verb == "write" else None
        answer = self.thawd.api.call(method, f"/v1/sandboxes/{name}{rest}", value, body=body)
        with self.lock:
            self.done.append(Done(name, verb, begin, time.monotonic(), answer))
            self.counts[f"any {verb}"] += 1

    def check_everybodys(self) -> None:
        for call in self.done:
            text = (call.name, call.verb, call.answer.status, call.answer.body[:300])
            if call.answer.status in EVERYBODYS[call.verb][3]:
                continue
            if call.answer.status == 502:
                assert call.answer.code == "guest_lost" and self.ended_meanwhile(call), text
            else:
                assert call.answer.status in (404, 409), text

    def ended_meanwhile(self, call: Done) -> bool:
        return any(
            other.name == call.name
            and other.verb in ENDERS
            and other.begin < call.end
            and other.end > call.begin
            for other in self.done
        )

    def remove_all(self) -> None:
        """What there is, by names that thawd tells: forks have names of their own."""
        for box in self.owned:
            if box.state != "absent":
                box.ended_and_deleted()
        listed = self.thawd.api.call("GET", "/v1/sandboxes?limit=1000").json["sandboxes"]
        paths = [f"/v1/sandboxes/{entry['name']}" for entry in listed]
        snapshots = self.thawd.api.call("GET", "/v1/snapshots").json["snapshots"]
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda path: self.thawd.api.call("DELETE", path), paths))
            assert {answer.status for answer in answers} == {204}
            paths = [f"/v1/snapshots/{entry['id']}" for entry in snapshots]
            answers = list(pool.map(lambda path: self.thawd.api.call("DELETE", path), paths))
            assert all(answer.status == 204 for answer in answers)


def tree(folder: Path) -> set[str]:
    """Folders and files, but for the database's."""
    found = set()
    for base, folders, files in os.walk(folder):
        inner = Path(base).relative_to(folder)
        found |= {str(inner / name) for name in folders + files}
    return {path for path in found if not path.startswith("thawd.db")}


def entries(thawd: Thawd, what: str) -> int:
    return len(list(Path(f"/proc/{thawd.pid}/{what}").iterdir()))


def in_cgroups(thawd: Thawd) -> list[str]:
    """Processes in the groups of stand-ins' guests."""
    found = []
    for root in Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"):
        for path in root.glob(f"{thawd.folder.name}-*/**/cgroup.procs"):
            with contextlib.suppress(OSError):
                found += path.read_text().split()
    return found


def rows(thawd: Thawd) -> list[int]:
    with contextlib.closing(sqlite3.connect(thawd.state / "thawd.db")) as db:
        tables = ("boxes", "snapshots")
        return [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


def children(thawd: Thawd) -> list[str]:
    found = []
    for path in Path(f"/proc/{thawd.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += path.read_text().split()
    return found


def one_of_each(thawd: Thawd, port: int, folder: Path) -> None:
    """So that what is made once and stays is there."""
    client = Client(thawd, port, random.Random(0))
    box = Box("first", folder / "first")
    client.create(box)
    for verb in WEIGHTS:
        if verb != "delete":
            if box.state != "running":
                client.live(box)
            getattr(client, verb)(box)
    assert thawd.api.call("DELETE", box.path).status == 204
    box.forget_disk()


@pytest.fixture
def thawd() -> Iterator[Thawd]:
    made = fresh_thawd(*CONFIG)
    try:
        yield made.start()
    finally:
        print(f"seed {SEED}:", made.log.read_text()[-4000:])
        remove_thawd(made)


def test_mixed(thawd: Thawd, port: int, tmp_path: Path) -> None:
    threads = entries(thawd, "task")
    one_of_each(thawd, port, tmp_path)
    assert eventually(lambda: not thawd.machines())
    # Snapshots that nobody needs go behind everybody's back.
    assert eventually(lambda: not any("snap." in path for path in tree(thawd.state)))
    fds, before = entries(thawd, "fd"), tree(thawd.state)

    watcher, load = Watcher(thawd), Load(thawd, port, tmp_path)
    try:
        load.fill()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(load.work, range(CLIENTS)))
        load.check_everybodys()
        load.remove_all()
        assert sum(load.counts.values()) == OPERATIONS

        def wrong() -> dict[str, tuple[list[str], list[str] | None]]:
            seen = {box.name: (box.events, watcher.lives.get(box.name)) for box in load.owned}
            return {name: pair for name, pair in seen.items() if pair[0] != pair[1]}

        assert eventually(lambda: not wrong()), wrong()
        execs = {ident: 1 for box in load.owned for ident in box.started}
        for kind in ("exec.started", "exec.ended"):
            assert eventually(
                lambda kind=kind: execs.items() <= watcher.execs.get(kind, Counter()).items()
            ), kind
        assert not watcher.gaps
    finally:
        watcher.close()

    assert rows(thawd) == [0, 0]
    assert eventually(lambda: not thawd.machines() and not children(thawd))
    assert eventually(lambda: tree(thawd.state) == before), tree(thawd.state) ^ before
    assert eventually(lambda: not in_cgroups(thawd))
    assert eventually(lambda: entries(thawd, "fd") <= fds), (entries(thawd, "fd"), fds)
    # Idle workers go after ten seconds.
    assert eventually(lambda: entries(thawd, "task") <= threads), entries(thawd, "task")
    log = thawd.log.read_text()
    assert "error:" not in log and "Sanitizer" not in log, log
