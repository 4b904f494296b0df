# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by name: thawd with stand-in machines and real shims (daemon.py)."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from daemon import (
    MACHINE,
    Thawd,
    alive,
    eventually,
    fresh_thawd,
    needs_thawd,
    remove_thawd,
    thawd,
)

pytestmark = needs_thawd
__all__ = ["thawd"]


def refused(thawd: Thawd, method: str, target: str, value: object = None) -> tuple[int, str, str]:
    answer = thawd.api.call(method, target, value)
    error = answer.json["error"]
    return answer.status, error["code"], error["message"]


def run(thawd: Thawd, name: str, *argv: str) -> str:
    answer = thawd.api.call("POST", f"/v1/sandboxes/{name}/exec", {"argv": argv})
    assert answer.status == 200, answer.body
    return answer.json["stdout"]


def snapshots_on_disk(thawd: Thawd) -> list[str]:
    return sorted(p.name for p in (thawd.state / "templates").glob("snap.*"))


# Create, compare, list.


def test_get_or_create(thawd: Thawd) -> None:
    spec = {"env": {"A": "b"}, "labels": {"team": "x"}, "inactivity_timeout_ms": 60000}
    first = thawd.api.call("PUT", "/v1/sandboxes/user-123", spec)
    assert first.status == 201 and first.json["state"] == "running"
    assert first.json["hostname"] == "user-123" and first.json["start"]["pool"] == "none"
    again = thawd.api.call("PUT", "/v1/sandboxes/user-123", spec)
    assert again.status == 200 and again.json["id"] == first.json["id"]
    answer = thawd.api.call(
        "PUT", "/v1/sandboxes/user-123", {**spec, "env": {"A": "c"}, "keep_alive": True}
    )
    assert answer.status == 409 and answer.code == "conflict"
    assert answer.json["error"]["details"]["differences"] == [
        {"field": "env", "have": {"A": "b"}, "want": {"A": "c"}},
        {"field": "keep_alive", "have": False, "want": True},
    ]
    assert refused(thawd, "POST", "/v1/sandboxes", {"name": "user-123"})[1] == "conflict"
    assert thawd.inspect("user-123")["id"] == first.json["id"]


def test_post_makes_a_name(thawd: Thawd) -> None:
    names = set()
    for _ in range(3):
        answer = thawd.api.call("POST", "/v1/sandboxes", {"start": False})
        assert answer.status == 201 and answer.json["state"] == "stopped"
        names.add(answer.json["name"])
    assert len(names) == 3


@pytest.mark.parametrize(
    ("spec", "code", "word"),
    [
        ({"colour": 1}, "unknown_field", "colour"),
        ({"template": "debian", "snapshot": "s"}, "invalid_request", "combined"),
        ({"template": "../x"}, "invalid_request", "template"),
        ({"template": "nothing"}, "not_found", "no template 'nothing'"),
        ({"snapshot": "nothing"}, "not_found", "no snapshot 'nothing'"),
        ({"internet": True}, "unsupported", "internet"),
        ({"size": "huge"}, "invalid_request", "size"),
        ({"size": "lite", "vcpus": 1}, "invalid_request", "combined"),
        ({"memory_bytes": 1 << 20}, "invalid_request", "memory_bytes"),
        ({"memory_bytes": (256 << 20) + 1}, "invalid_request", "MiB"),
        ({"vcpus": "1"}, "invalid_request", "vcpus"),
        ({"labels": {"k": 1}}, "invalid_request", "label"),
        ({"labels": {"k" * 17: "v"}}, "invalid_request", "label"),
        ({"labels": {"k": "v" * 65}}, "invalid_request", "label"),
        ({"labels": {"k": "a\nb"}}, "invalid_request", "label"),
        ({"labels": {f"k{i}": "" for i in range(11)}}, "invalid_request", "label"),
        ({"env": {"a=b": "c"}}, "invalid_request", "env"),
        ({"env": {"a": "\0"}}, "invalid_request", "u0000"),
        ({"entrypoint": []}, "invalid_request", "entrypoint"),
        ({"entrypoint": "sh"}, "invalid_request", "entrypoint"),
        ({"inactivity_timeout_ms": 0}, "invalid_request", "inactivity"),
        ({"inactivity_timeout_ms": 21600001}, "invalid_request", "inactivity"),
        ({"labels": {"k": "a\u0085b"}}, "invalid_request", "label"),
        ({"labels": {"\u009b": "v"}}, "invalid_request", "label"),
        ({"hostname": "a b"}, "invalid_request", "hostname"),
        ({"hostname": "-"}, "invalid_request", "hostname"),
        ({"hostname": "a-"}, "invalid_request", "hostname"),
        ({"hostname": "a..b"}, "invalid_request", "hostname"),
        ({"hostname": "."}, "invalid_request", "hostname"),
        ({"hostname": "a.-b"}, "invalid_request", "hostname"),
        ({"start": 1}, "invalid_request", "start"),
    ],
)
def test_refused_specifications(
    shared: Thawd, spec: dict[str, object], code: str, word: str
) -> None:
    status, got, message = refused(shared, "PUT", "/v1/sandboxes/no", spec)
    assert (got, status) == (code, 404 if code == "not_found" else 400) and word in message
    assert shared.api.call("GET", "/v1/sandboxes/no").status == 404


@pytest.mark.parametrize("name", ["-a", "a-", "A", "a_b", "a" * 64, "a.b", "%C3%A4"])
def test_refused_names(shared: Thawd, name: str) -> None:
    assert refused(shared, "PUT", f"/v1/sandboxes/{name}", {})[:2] == (400, "invalid_request")


def test_template_is_looked_for_when_nothing_is_started(shared: Thawd) -> None:
    body = {"template": "nothing", "start": False}
    status, code, message = refused(shared, "PUT", "/v1/sandboxes/no", body)
    assert (status, code) == (404, "not_found") and "thaw template" in message


def test_list(thawd: Thawd) -> None:
    for i in range(7):
        labels = {"n": str(i), "odd": ""} if i % 2 else {"n": str(i)}
        thawd.create(f"box-{i}", start=False, labels=labels)
    thawd.create("other")

    def names(query: str) -> list[str]:
        answer = thawd.api.call("GET", f"/v1/sandboxes?{query}")
        assert answer.status == 200
        return [box["name"] for box in answer.json["sandboxes"]]

    assert names("label=odd") == ["box-1", "box-3", "box-5"]
    assert names("label=n=3&label=odd") == ["box-3"] and names("label=n=3&label=x") == []
    assert names("state=running") == ["other"]
    assert refused(thawd, "GET", "/v1/sandboxes?state=odd")[1] == "invalid_request"
    found: list[str] = []
    cursor = ""
    while True:
        page = thawd.api.call("GET", f"/v1/sandboxes?limit=3{cursor}").json
        found += [box["name"] for box in page["sandboxes"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
        thawd.api.call("DELETE", f"/v1/sandboxes/{found[-1]}")
    assert found == [*(f"box-{i}" for i in range(7)), "other"]


def test_patch(thawd: Thawd) -> None:
    thawd.create("a", labels={"x": "1"})
    value = {"labels": {"y": "2"}, "keep_alive": True, "hard_timeout_ms": 3600000}
    box = thawd.api.call("PATCH", "/v1/sandboxes/a", value).json
    assert box["labels"] == {"y": "2"} and box["keep_alive"] and box["hard_timeout_ms"] == 3600000
    assert box["expires"] is not None
    box = thawd.api.call("PATCH", "/v1/sandboxes/a", {"hard_timeout_ms": None}).json
    assert box["hard_timeout_ms"] is None and box["expires"] is None
    assert refused(thawd, "PATCH", "/v1/sandboxes/a", {"env": {}})[1] == "unknown_field"
    thawd.kill9()
    thawd.start()
    assert thawd.inspect("a")["labels"] == {"y": "2"}


# Starts and ends.


def test_stop_start_destroy_delete(thawd: Thawd) -> None:
    box = thawd.create("a")
    status, code, message = refused(thawd, "POST", "/v1/sandboxes/a/start")
    assert (status, code) == (409, "wrong_state") and "running" in message
    stopped = thawd.api.call("POST", "/v1/sandboxes/a/stop", {"reason": "enough"}).json
    assert stopped["state"] == "stopped" and stopped["id"] is None
    assert stopped["stop"]["reason"] == "stopped" and stopped["stop"]["message"] == "enough"
    assert not thawd.machines()
    status, code, message = refused(thawd, "POST", "/v1/sandboxes/a/exec", {"argv": ["true"]})
    assert (status, code) == (409, "wrong_state") and "start" in message
    again = thawd.api.call("POST", "/v1/sandboxes/a/start", {}).json
    assert again["state"] == "running" and again["id"] != box["id"]
    assert again["stop"]["reason"] == "stopped"
    assert thawd.machine_ids() == [again["id"]]
    gone = thawd.api.call("POST", "/v1/sandboxes/a/destroy", {}).json
    assert gone["state"] == "stopped" and gone["stop"]["reason"] == "destroyed"
    assert thawd.api.call("POST", "/v1/sandboxes/a/stop", {}).status == 200
    for _ in range(2):
        assert thawd.api.call("DELETE", "/v1/sandboxes/a?reason=x").status == 204
    assert not thawd.machine_ids()
    assert refused(thawd, "GET", "/v1/sandboxes/a")[:2] == (404, "not_found")


def test_stop_sends_term_and_then_kill(thawd: Thawd, tmp_path: Path) -> None:
    thawd.create("a")
    for name, trap in (("kind", f"echo term > {tmp_path}/kind; exit 0"), ("deaf", ":")):
        pid = tmp_path / f"{name}.pid"
        script = f"trap '{trap}' TERM; echo $$ > {pid}; while :; do sleep 0.01; done"
        answer = thawd.api.call(
            "POST", "/v1/sandboxes/a/exec", {"argv": ["sh", "-c", script], "detach": True}
        )
        assert answer.status == 202
        assert eventually(pid.exists)
    assert thawd.api.call("POST", "/v1/sandboxes/a/stop", {"grace_ms": 300}).status == 200
    assert (tmp_path / "kind").read_text() == "term\n"
    assert not thawd.machines()


def test_guest_that_does_not_shut_down_is_ended(thawd: Thawd) -> None:
    thawd.misbehave.write_text("no-shutdown")
    thawd.create("a")
    assert thawd.api.call("POST", "/v1/sandboxes/a/stop", {"grace_ms": 1}).status == 200
    thawd.misbehave.write_text("deaf")
    thawd.create("b")
    assert thawd.api.call("POST", "/v1/sandboxes/b/stop", {"grace_ms": 1}).status == 200
    assert not thawd.machines()


def test_entrypoint(thawd: Thawd) -> None:
    spec = {"entrypoint": ["sh", "-c", "exit $CODE"], "env": {"CODE": "7"}}
    thawd.create("a", **spec)
    answer = thawd.api.call("GET", "/v1/sandboxes/a/wait").json
    assert not answer["running"]
    assert answer["stop"]["reason"] == "exited" and answer["stop"]["exit_code"] == 7
    box = thawd.inspect("a")
    assert box["state"] == "stopped"
    logs = f"/v1/sandboxes/a/execs/{box['entrypoint_exec']}/logs"
    assert thawd.api.call("GET", logs).status == 200
    box = thawd.create("b", entrypoint=["sleep", "1000"])
    assert box["entrypoint_exec"]
    assert thawd.api.call("GET", "/v1/sandboxes/b/wait?timeout_ms=1").json["running"]
    assert thawd.api.call("POST", "/v1/sandboxes/b/signal", {"signal": "KILL"}).status == 204
    answer = thawd.api.call("GET", "/v1/sandboxes/b/wait").json
    assert answer["stop"]["exit_code"] == 137
    status, code, message = refused(thawd, "PUT", "/v1/sandboxes/c", {"entrypoint": ["no-such"]})
    assert (status, code) == (422, "spawn_failed") and "no-such" in message
    assert not thawd.machines()


def test_start_that_fails_is_explained_and_tried_again(thawd: Thawd) -> None:
    thawd.misbehave.write_text("start-dies")
    status, code, message = refused(thawd, "PUT", "/v1/sandboxes/a", {})
    assert (status, code) == (500, "internal") and "a word of its own" in message
    assert thawd.api.call("GET", "/v1/sandboxes/a").status == 404
    thawd.create("a", start=False)
    status, code, message = refused(thawd, "POST", "/v1/sandboxes/a/start")
    assert (status, code) == (500, "internal") and "a word of its own" in message
    box = thawd.inspect("a")
    assert box["state"] == "failed" and "a word of its own" in box["stop"]["message"]
    thawd.misbehave.unlink()
    assert thawd.create("a")["state"] == "running"


def test_machine_that_ends_by_itself(thawd: Thawd) -> None:
    box = thawd.create("a")
    with thawd.api.stream("GET", "/v1/events?sandbox=a") as events:
        thawd.kill_machine(box["id"])
        event = next(iter(events.events()))
    assert event.data["type"] == "sandbox.stopped" and event.data["details"]["reason"] == "lost"
    box = thawd.inspect("a")
    assert box["state"] == "stopped" and box["stop"]["reason"] == "lost"
    assert thawd.create("a")["state"] == "running"


def test_auto_remove(thawd: Thawd) -> None:
    thawd.create("a", auto_remove=True, entrypoint=["true"])
    assert eventually(lambda: thawd.api.call("GET", "/v1/sandboxes/a").status == 404)
    box = thawd.create("b", auto_remove=True)
    thawd.kill_machine(box["id"])
    assert eventually(lambda: thawd.api.call("GET", "/v1/sandboxes/b").status == 404)
    thawd.misbehave.write_text("start-dies")
    assert thawd.api.call("PUT", "/v1/sandboxes/c", {"auto_remove": True}).status == 500
    assert thawd.api.call("GET", "/v1/sandboxes/c").status == 404
    assert not thawd.machine_ids()


def test_timeouts(thawd: Thawd) -> None:
    thawd.create("idle", inactivity_timeout_ms=300)
    thawd.create("hard", hard_timeout_ms=300, keep_alive=True)
    thawd.create("kept", inactivity_timeout_ms=100, keep_alive=True)
    thawd.create("used", inactivity_timeout_ms=100)
    body = {"argv": ["sh", "-c", "while [ ! -e /proc/1/nothing ]; do echo x; sleep 0.05; done"]}
    headers = {"Accept": "text/event-stream"}
    with thawd.api.stream("POST", "/v1/sandboxes/used/exec", body, headers=headers):
        for name, reason in (("idle", "idle"), ("hard", "hard_timeout")):
            answer = thawd.api.call("GET", f"/v1/sandboxes/{name}/wait").json
            assert answer["stop"]["reason"] == reason
        assert thawd.state_of("used") == "running" and thawd.state_of("kept") == "running"
    answer = thawd.api.call("GET", "/v1/sandboxes/used/wait").json
    assert answer["stop"]["reason"] == "idle"


def test_hard_timeout_holds_while_thawd_is_down(thawd: Thawd) -> None:
    box = thawd.create("a", hard_timeout_ms=500)
    pid = thawd.machine_pid(box["id"])
    thawd.kill9()
    assert eventually(lambda: not alive(pid))
    thawd.start()
    assert thawd.inspect("a")["stop"]["reason"] == "hard_timeout"


def test_activity_keeps_it(thawd: Thawd) -> None:
    thawd.create("a", inactivity_timeout_ms=1000)
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        assert thawd.api.call("POST", "/v1/sandboxes/a/touch", {}).status == 204
        time.sleep(0.05)
    assert thawd.api.call("GET", "/v1/sandboxes/a/wait").json["stop"]["reason"] == "idle"


# Pause, resume, fork, snapshots.


def test_pause_and_resume(thawd: Thawd) -> None:
    box = thawd.create("a")
    paused = thawd.api.call("POST", "/v1/sandboxes/a/pause", {}).json
    assert paused["state"] == "paused" and not thawd.machines()
    assert len(snapshots_on_disk(thawd)) == 1
    for verb in ("pause", "start"):
        assert refused(thawd, "POST", f"/v1/sandboxes/a/{verb}")[1] == "wrong_state"
    thawd.kill9()
    thawd.start()
    assert thawd.state_of("a") == "paused"
    resumed = thawd.api.call("POST", "/v1/sandboxes/a/resume", {}).json
    assert resumed["state"] == "running" and resumed["id"] == box["id"]
    assert run(thawd, "a", "echo", "x") == "x\n"
    thawd.api.call("POST", "/v1/sandboxes/a/stop", {"grace_ms": 0})
    assert eventually(lambda: not snapshots_on_disk(thawd))


def test_pause_that_fails_leaves_it_running(thawd: Thawd) -> None:
    thawd.misbehave.write_text("snapshot-fails")
    thawd.create("a")
    status, code, message = refused(thawd, "POST", "/v1/sandboxes/a/pause")
    assert (status, code) == (507, "no_space") and "No space left" in message
    assert thawd.state_of("a") == "running" and run(thawd, "a", "echo", "x") == "x\n"
    thawd.misbehave.write_text("snapshot-dies")
    thawd.create("b")
    assert thawd.api.call("POST", "/v1/sandboxes/b/pause", {}).status == 500
    assert thawd.api.call("GET", "/v1/sandboxes/b/wait").json["stop"]["reason"] == "lost"
    assert eventually(lambda: not list((thawd.state / "keep").iterdir()))
    assert not snapshots_on_disk(thawd)


def test_destroy_of_a_paused_one(thawd: Thawd) -> None:
    thawd.create("a")
    thawd.api.call("POST", "/v1/sandboxes/a/pause", {})
    gone = thawd.api.call("POST", "/v1/sandboxes/a/destroy", {}).json
    assert gone["state"] == "stopped"
    assert eventually(lambda: not snapshots_on_disk(thawd))


def test_fork(thawd: Thawd) -> None:
    thawd.create("a", labels={"x": "1"}, env={"k": "v"})
    answer = thawd.api.call("POST", "/v1/sandboxes/a/fork", {"count": 3}).json
    assert answer["pause_ms"] == 1.5 and len(answer["forks"]) == 3
    clones = [fork["sandbox"] for fork in answer["forks"]]
    assert {clone["parent"] for clone in clones} == {"a"}
    assert all(clone["snapshot"] == answer["snapshot"] for clone in clones)
    assert all(clone["labels"] == {"x": "1"} and clone["env"] == {"k": "v"} for clone in clones)
    body = {"names": ["a", "new"], "count": 2, "labels": {}}
    answer = thawd.api.call("POST", "/v1/sandboxes/a/fork", body).json
    assert answer["forks"][0]["error"]["code"] == "conflict"
    assert answer["forks"][1]["sandbox"]["name"] == "new"
    assert answer["forks"][1]["sandbox"]["labels"] == {}
    # One that was stopped starts again from the same memory, as long as it is there.
    name = clones[0]["name"]
    thawd.api.call("POST", f"/v1/sandboxes/{name}/destroy", {})
    assert thawd.api.call("POST", f"/v1/sandboxes/{name}/start", {}).status == 200
    for clone in [*clones, {"name": "new"}]:
        thawd.api.call("DELETE", f"/v1/sandboxes/{clone['name']}")
    assert eventually(lambda: not snapshots_on_disk(thawd))
    assert thawd.state_of("a") == "running"


def test_snapshots(thawd: Thawd) -> None:
    thawd.create("a")
    body = {"name": "good", "labels": {"x": "y"}}
    made = thawd.api.call("POST", "/v1/sandboxes/a/snapshots", body)
    assert made.status == 201 and made.json["name"] == "good" and made.json["sandbox"] == "a"
    assert refused(thawd, "POST", "/v1/sandboxes/a/snapshots", body)[1] == "conflict"
    thawd.api.call("DELETE", "/v1/sandboxes/a")
    thawd.kill9()
    thawd.start()
    listed = thawd.api.call("GET", "/v1/snapshots?sandbox=a").json["snapshots"]
    assert listed == [made.json]
    assert thawd.api.call("GET", f"/v1/snapshots/{made.json['id']}").json == made.json
    box = thawd.create("b", snapshot="good")
    assert box["snapshot"] == made.json["id"] and box["template"] == "debian"
    assert thawd.api.call("PUT", "/v1/sandboxes/b", {"snapshot": "good"}).status == 200
    answer = thawd.api.call("DELETE", "/v1/snapshots/good")
    assert answer.status == 409 and answer.json["error"]["details"]["dependents"] == ["b"]
    thawd.api.call("DELETE", "/v1/sandboxes/b")
    assert thawd.api.call("DELETE", "/v1/snapshots/good").status == 204
    assert thawd.api.call("DELETE", "/v1/snapshots/good").status == 404
    assert eventually(lambda: not snapshots_on_disk(thawd))


# Sizes, quotas, pools.


def test_sizes_are_built_once(thawd: Thawd) -> None:
    specs: dict[str, dict[str, object]] = {
        "a": {"size": "basic"},
        "b": {"vcpus": 1, "memory_bytes": 1 << 30},
    }
    with ThreadPoolExecutor() as pool:
        boxes = list(pool.map(lambda item: thawd.create(item[0], **item[1]), specs.items()))
    assert [box["size"]["name"] for box in boxes] == ["basic", None]
    assert boxes[0]["size"]["memory_bytes"] == 1 << 30
    assert (thawd.state / "templates/debian.c1m1024").is_dir()
    templates = thawd.api.call("GET", "/v1/templates").json["templates"]
    assert [(t["name"], t["sizes"]) for t in templates] == [("debian", ["basic"])]
    assert refused(thawd, "DELETE", "/v1/templates/debian")[1] == "conflict"


def test_size_that_cannot_be_built(thawd: Thawd) -> None:
    (thawd.guest / "guest.json").write_text("{}")
    status, code, message = refused(thawd, "PUT", "/v1/sandboxes/a", {"size": "basic"})
    assert (status, code) == (500, "internal") and "debian.c1m1024" in message
    assert "guest.json" in message
    assert thawd.api.call("GET", "/v1/sandboxes/a").status == 404


@pytest.mark.parametrize("thawd", [["max_vcpus = 2", "max_memory = 1G"]], indirect=True)
def test_quotas(thawd: Thawd) -> None:
    thawd.create("a")
    thawd.create("b")
    answer = thawd.api.call("PUT", "/v1/sandboxes/c", {})
    assert answer.status == 503 and answer.code == "capacity" and int(answer.headers["retry-after"])
    assert "max_vcpus" in answer.json["error"]["message"]
    assert thawd.api.call("GET", "/v1/sandboxes/c").status == 404
    thawd.api.call("POST", "/v1/sandboxes/a/pause", {})
    assert thawd.create("c")["state"] == "running"
    assert refused(thawd, "POST", "/v1/sandboxes/a/resume")[1] == "capacity"
    assert thawd.state_of("a") == "paused"
    thawd.kill9()
    thawd.start()
    assert refused(thawd, "POST", "/v1/sandboxes/a/resume")[1] == "capacity"
    thawd.api.call("DELETE", "/v1/sandboxes/c")
    assert thawd.api.call("POST", "/v1/sandboxes/a/resume", {}).status == 200


@pytest.mark.parametrize("thawd", [["pools = debian=2"]], indirect=True)
def test_pool(thawd: Thawd) -> None:
    def ready() -> int:
        return thawd.api.call("GET", "/v1/pools").json["pools"][0]["ready"]

    assert eventually(lambda: ready() == 2)
    box = thawd.create("a", hostname="own")
    assert box["start"]["pool"] == "hit" and run(thawd, "a", "echo", "x") == "x\n"
    assert eventually(lambda: ready() == 2)
    thawd.kill9()
    # What waits ends with thawd, what was claimed does not.
    assert eventually(lambda: thawd.machines() == [thawd.machine_pid(box["id"])])
    thawd.start()
    assert thawd.state_of("a") == "running" and run(thawd, "a", "echo", "x") == "x\n"
    assert eventually(lambda: ready() == 2)
    assert len(thawd.machine_ids()) == 3
    answer = thawd.api.call("PUT", "/v1/pools/debian", {"size": 1})
    assert answer.status == 200 and answer.json["size"] == 1
    assert eventually(lambda: len(thawd.machine_ids()) == 2)
    assert thawd.api.call("DELETE", "/v1/pools/debian").status == 204
    assert eventually(lambda: len(thawd.machine_ids()) == 1)
    assert thawd.create("b")["start"]["pool"] == "none"


def test_pool_machine_that_died_is_replaced(thawd: Thawd) -> None:
    assert thawd.api.call("PUT", "/v1/pools/debian", {"size": 1}).status == 200
    assert eventually(lambda: len(thawd.machine_ids()) == 1 and thawd.machines())
    assert eventually(lambda: thawd.api.call("GET", "/v1/pools").json["pools"][0]["ready"])
    thawd.kill_machine(thawd.machine_ids()[0])
    assert thawd.create("a")["state"] == "running"


def test_prune(thawd: Thawd) -> None:
    thawd.create("a")
    thawd.create("b", start=False)
    thawd.api.call("POST", "/v1/sandboxes/a/snapshots", {"name": "s"})
    removed = thawd.api.call("POST", "/v1/prune", {"what": ["stopped", "snapshots"]}).json
    assert [entry["kind"] for entry in removed["removed"]] == ["sandbox", "snapshot"]
    assert [b["name"] for b in thawd.api.call("GET", "/v1/sandboxes").json["sandboxes"]] == ["a"]


# Many, and thawd's end.


def test_a_hundred_at_once(thawd: Thawd) -> None:
    with ThreadPoolExecutor(100) as pool:
        boxes = list(pool.map(lambda i: thawd.create(f"box-{i}"), range(100)))
        assert all(box["state"] == "running" for box in boxes)
        outs = list(pool.map(lambda i: run(thawd, f"box-{i}", "echo", str(i)), range(100)))
        assert outs == [f"{i}\n" for i in range(100)]
        answers = list(
            pool.map(lambda i: thawd.api.call("DELETE", f"/v1/sandboxes/box-{i}"), range(100))
        )
    assert {answer.status for answer in answers} == {204}
    assert not thawd.machines() and not thawd.machine_ids()


def test_one_name_by_many(thawd: Thawd) -> None:
    with ThreadPoolExecutor(20) as pool:
        calls = [
            pool.submit(thawd.api.call, "PUT", "/v1/sandboxes/one", {"labels": {"a": "b"}})
            for _ in range(20)
        ]
        statuses = sorted(call.result().status for call in calls)
    assert statuses == [200] * 19 + [201]
    assert len(thawd.machines()) == 1


def test_restart_keeps_everything(thawd: Thawd) -> None:
    box = thawd.create("a")
    run(thawd, "a", "sh", "-c", "exec sleep 1000 >/dev/null 2>&1 &")
    pid = thawd.machine_pid(box["id"])
    for _ in range(2):
        thawd.restart()
        assert alive(pid) and thawd.inspect("a")["id"] == box["id"]
    thawd.kill9()
    os.kill(pid, 9)
    assert eventually(lambda: not alive(pid))
    thawd.start()
    box = thawd.inspect("a")
    assert box["state"] == "stopped" and box["stop"]["reason"] == "lost"


def test_sandboxes_of_the_command_are_left_alone(thawd: Thawd) -> None:
    import subprocess

    from daemon import THAW

    env = {**thawd.env, "THAW_SOCKET": ""}
    proc = subprocess.run(
        [THAW, "run", "-d", "debian"], env=env, capture_output=True, text=True, check=True
    )
    ident = proc.stdout.strip()
    box = thawd.create("a")
    thawd.restart()
    assert set(thawd.machine_ids()) == {ident, box["id"]}
    proc = subprocess.run([THAW, "ps"], env=env, capture_output=True, text=True, check=True)
    assert ident in proc.stdout and box["id"] not in proc.stdout
    proc = subprocess.run([THAW, "stop", box["id"]], env=env, capture_output=True, check=False)
    assert proc.returncode != 0 and thawd.state_of("a") == "running"
    subprocess.run([THAW, "stop", ident], env=env, check=True, capture_output=True)
    assert thawd.machine_ids() == [box["id"]]


def test_orphans_go(thawd: Thawd) -> None:
    box = thawd.create("a")
    pid = thawd.machine_pid(box["id"])
    thawd.kill9()
    with sqlite3.connect(thawd.state / "thawd.db") as db:
        db.execute("DELETE FROM boxes")
    db.close()
    thawd.start()
    assert not alive(pid) and not thawd.machine_ids()


def starts_not(thawd: Thawd) -> str:
    with pytest.raises(AssertionError):
        thawd.start()
    return thawd.log.read_text()


def test_databases_that_are_refused(thawd: Thawd) -> None:
    box = thawd.create("a")
    thawd.stop()
    path = thawd.state / "thawd.db"
    good = path.read_bytes()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
    db.close()
    assert "newer thawd (version 99" in starts_not(thawd)
    path.write_bytes(good[:4096] + os.urandom(len(good) - 4096))
    log = starts_not(thawd)
    assert "thawd.db: damaged" in log and "nothing was changed" in log
    path.write_bytes(b"no database at all" * 1000)
    assert "thawd.db: damaged" in starts_not(thawd)
    assert path.read_bytes().startswith(b"no database") and alive(thawd.machine_pid(box["id"]))


def test_memory_of_an_idle_sandbox(thawd: Thawd) -> None:
    def private_kib() -> int:
        lines = Path(f"/proc/{thawd.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

    thawd.create("first")
    before = private_kib()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: thawd.create(f"box-{i}"), range(60)))
    assert (private_kib() - before) / 60 <= 64


@pytest.fixture(scope="module")
def shared() -> Iterator[Thawd]:
    """For tests that leave nothing."""
    made = fresh_thawd()
    try:
        yield made.start()
    finally:
        remove_thawd(made)


def states(thawd: Thawd) -> dict[str, Any]:
    listed = thawd.api.call("GET", "/v1/sandboxes?limit=1000").json["sandboxes"]
    return {box["name"]: box for box in listed}


def running_pids(thawd: Thawd) -> set[int]:
    running = [box["id"] for box in states(thawd).values() if box["state"] == "running"]
    return {thawd.machine_pid(ident) for ident in running}


def check_repaired(thawd: Thawd) -> None:
    """What is said and what is there are the same."""
    thawd.api.call("DELETE", "/v1/pools/debian")
    # A machine that was killed a moment ago may not have been noticed yet.
    assert eventually(lambda: all(map(alive, running_pids(thawd))))
    boxes = states(thawd)
    for box in boxes.values():
        assert box["state"] in ("running", "stopped", "paused", "failed"), box
    pids = running_pids(thawd)
    assert eventually(lambda: set(thawd.machines()) == pids), (thawd.machines(), pids)
    for name, box in boxes.items():
        if box["state"] == "running":
            assert run(thawd, name, "echo", name) == f"{name}\n"


class Load:
    """Clients that do all there is to do, until they are told to end. Errors are expected: thawd
    is killed under them."""

    def __init__(self, thawd: Thawd, seed: int) -> None:
        self.thawd, self.end = thawd, threading.Event()
        self.threads = [
            threading.Thread(target=self.work, args=(seed, i), daemon=True) for i in range(4)
        ]
        for thread in self.threads:
            thread.start()

    def work(self, seed: int, number: int) -> None:
        dice = random.Random(f"{seed}.{number}")
        verbs = ["create", "create", "exec", "stop", "pause", "resume", "fork", "delete", "crash"]
        while not self.end.is_set():
            name, verb = f"n{dice.randrange(5)}", dice.choice(verbs)
            if verb == "crash":
                with contextlib.suppress(OSError, IndexError, ValueError):
                    os.kill(self.thawd.machine_pid(dice.choice(self.thawd.machine_ids())), 9)
                continue
            path = f"/v1/sandboxes/{name}"
            calls: dict[str, tuple[str, str, object]] = {
                "create": ("PUT", path, {}),
                "exec": ("POST", f"{path}/exec", {"argv": ["sh", "-c", "echo x"]}),
                "stop": ("POST", f"{path}/stop", {"grace_ms": 10}),
                "pause": ("POST", f"{path}/pause", {}),
                "resume": ("POST", f"{path}/resume", {}),
                "fork": ("POST", f"{path}/fork", {"names": [f"f{number}"]}),
                "delete": ("DELETE", path, None),
            }
            try:
                self.thawd.api.call(*calls[verb], check=False, timeout_s=30)
            except Exception:
                self.end.wait(0.01)

    def stop(self) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


def test_killed_at_random_instants() -> None:
    seed = int(os.environ.get("THAW_TEST_SEED", "4"))
    instants = int(os.environ.get("THAW_TEST_INSTANTS", "60"))
    dice = random.Random(seed)
    thawd = fresh_thawd("pools = debian=1").start()
    load = Load(thawd, seed)
    try:
        for i in range(instants):
            time.sleep(dice.uniform(0, 0.25))
            thawd.kill9()
            thawd.start()
            if i % 10 == 9:
                load.stop()
                check_repaired(thawd)
                load = Load(thawd, seed + i)
        load.stop()
        check_repaired(thawd)
        for name in states(thawd):
            assert thawd.api.call("DELETE", f"/v1/sandboxes/{name}").status == 204
        assert not thawd.machines() and not thawd.machine_ids()
        assert eventually(lambda: not snapshots_on_disk(thawd))
        assert MACHINE.exists()
    except BaseException:
        print(f"seed {seed}:", thawd.log.read_text()[-4000:])
        raise
    finally:
        load.end.set()
        remove_thawd(thawd)
