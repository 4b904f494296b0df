# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by name when something is in the way: a busy one, a full or locked database, quotas."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon import (
    Thawd,
    eventually,
    needs_thawd,
    thawd,
)

pytestmark = needs_thawd
__all__ = ["thawd"]


def refused(thawd: Thawd, method: str, target: str, value: object = None) -> tuple[int, str, str]:
    answer = thawd.api.call(method, target, value)
    error = answer.json["error"]
    return answer.status, error["code"], error["message"]


def begin(thawd: Thawd, method: str, target: str, value: object) -> http.client.HTTPConnection:
    """A request whose answer is not waited for."""
    connection = thawd.api.connection()
    connection.request(method, target, json.dumps(value), {"Content-Type": "application/json"})
    return connection


@pytest.mark.parametrize("thawd", [["max_requests = 8"]], indirect=True)
def test_who_left_waits_for_no_busy_sandbox(thawd: Thawd) -> None:
    thawd.misbehave.write_text("no-shutdown")
    thawd.create("busy")
    thawd.create("other")
    calls: list[tuple[str, str, object]] = [
        ("PATCH", "/v1/sandboxes/busy", {}),
        ("POST", "/v1/sandboxes/busy/start", {}),
        ("POST", "/v1/sandboxes/busy/fork", {}),
        ("POST", "/v1/sandboxes/busy/snapshots", {}),
        ("PUT", "/v1/sandboxes/busy", {}),
    ]
    with ThreadPoolExecutor() as pool:
        stop = pool.submit(thawd.api.call, "POST", "/v1/sandboxes/busy/stop", {"grace_ms": 600000})
        assert eventually(lambda: thawd.state_of("busy") == "stopping")
        # With the stop that is more than there is room for.
        waiting = [begin(thawd, *call) for call in calls * 2]
        assert eventually(lambda: thawd.api.call("PATCH", "/v1/sandboxes/other", {}).status == 503)
        for connection in waiting:
            connection.close()
        assert eventually(lambda: thawd.api.call("PATCH", "/v1/sandboxes/other", {}).status == 200)
        assert thawd.state_of("busy") == "stopping"
        assert thawd.api.call("POST", "/v1/sandboxes/busy/destroy", {}).status == 200
        assert stop.result().status == 200


@pytest.mark.parametrize("thawd", [["stop_timeout = 1h"]], indirect=True)
def test_who_waits_for_a_busy_sandbox_hears_of_the_end(thawd: Thawd) -> None:
    thawd.misbehave.write_text("no-shutdown")
    thawd.create("busy")
    stop = begin(thawd, "POST", "/v1/sandboxes/busy/stop", {"grace_ms": 600000})
    assert eventually(lambda: thawd.state_of("busy") == "stopping")
    waiting = begin(thawd, "PATCH", "/v1/sandboxes/busy", {})
    assert thawd.process
    thawd.process.terminate()
    try:
        response = waiting.getresponse()
        assert response.status == 503 and response.headers["retry-after"]
    except (ConnectionError, http.client.HTTPException):
        pass  # it may be cut off instead
    assert thawd.process.poll() is None
    stop.close()
    thawd.kill9()


def database(thawd: Thawd) -> contextlib.closing[sqlite3.Connection]:
    """Of another process."""
    return contextlib.closing(
        sqlite3.connect(thawd.state / "thawd.db", isolation_level=None, timeout=60)
    )


def rows(thawd: Thawd) -> dict[str, str]:
    with database(thawd) as db:
        return dict(db.execute("SELECT name, state FROM boxes"))


@pytest.mark.parametrize("state", ["running", "paused", "stopped"])
def test_delete_that_cannot_be_is_none(thawd: Thawd, state: str) -> None:
    thawd.create("a")
    if state != "running":
        verb = "pause" if state == "paused" else "destroy"
        assert thawd.api.call("POST", f"/v1/sandboxes/a/{verb}", {}).status == 200
    with database(thawd) as db:
        db.execute(
            "CREATE TRIGGER no BEFORE DELETE ON boxes BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
        for _ in range(2):
            status, code, message = refused(thawd, "DELETE", "/v1/sandboxes/a")
            assert (status, code) == (500, "internal") and "not now" in message
            assert thawd.state_of("a") == "stopped" and not thawd.machines()
        db.execute("DROP TRIGGER no")
    thawd.kill9()
    thawd.start()
    assert thawd.state_of("a") == "stopped"
    assert thawd.api.call("DELETE", "/v1/sandboxes/a").status == 204
    assert not rows(thawd) and not thawd.machine_ids()
    thawd.kill9()
    thawd.start()
    assert thawd.api.call("GET", "/v1/sandboxes/a").status == 404


def test_auto_remove_is_tried_again(thawd: Thawd) -> None:
    box = thawd.create("a", auto_remove=True)
    with database(thawd) as db:
        db.execute(
            "CREATE TRIGGER no BEFORE DELETE ON boxes BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
        thawd.kill_machine(box["id"])
        assert eventually(lambda: thawd.state_of("a") == "stopped")
        db.execute("DROP TRIGGER no")
    assert eventually(lambda: thawd.api.call("GET", "/v1/sandboxes/a").status == 404)
    assert not rows(thawd)


def test_locked_database(thawd: Thawd) -> None:
    """Nobody waits for it behind others, and what happened meanwhile is written afterwards."""
    box = thawd.create("dies")
    thawd.create("ends")
    thawd.create("stays", start=False)
    with database(thawd) as db:
        db.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(40) as pool:
            answers = list(
                pool.map(
                    lambda i: thawd.api.call(
                        "PUT", f"/v1/sandboxes/new-{i}", {"start": False}, timeout_s=60
                    ),
                    range(40),
                )
            )
        for answer in answers:
            assert (answer.status, answer.code) == (503, "capacity")
            assert "locked" in answer.json["error"]["message"]
            assert int(answer.headers["retry-after"])
        assert thawd.api.call("DELETE", "/v1/sandboxes/stays").status == 503
        assert thawd.state_of("stays") == "stopped"
        assert thawd.api.call("POST", "/v1/sandboxes/ends/destroy", {}).status == 200
        thawd.kill_machine(box["id"])
        assert eventually(lambda: thawd.state_of("dies") == "stopped")
        db.execute("ROLLBACK")
    assert eventually(
        lambda: rows(thawd) == {"dies": "stopped", "ends": "stopped", "stays": "stopped"}
    )
    thawd.kill9()
    thawd.start()
    assert thawd.inspect("ends")["stop"]["reason"] == "destroyed"
    assert thawd.api.call("DELETE", "/v1/sandboxes/stays").status == 204


def test_create_that_fails_leaves_the_name(thawd: Thawd) -> None:
    for method, target, spec in (
        ("PUT", "/v1/sandboxes/a", {}),
        ("POST", "/v1/sandboxes", {"name": "a"}),
    ):
        bad = {**spec, "entrypoint": ["no-such"]}
        status, code, message = refused(thawd, method, target, bad)
        assert (status, code) == (422, "spawn_failed") and "no-such" in message
        assert thawd.api.call("GET", "/v1/sandboxes/a").status == 404
        assert not rows(thawd) and not thawd.machine_ids()
        answer = thawd.api.call(method, target, {**spec, "entrypoint": ["sleep", "60"]})
        assert answer.status == 201 and answer.json["state"] == "running"
        assert thawd.api.call("DELETE", "/v1/sandboxes/a").status == 204
    # One that was there stays, and says why it does not run.
    thawd.create("b", start=False, entrypoint=["no-such"])
    assert refused(thawd, "POST", "/v1/sandboxes/b/start")[0] == 422
    assert thawd.inspect("b")["stop"]["reason"] == "failed"


@pytest.mark.parametrize("thawd", [["max_sandboxes = 3"]], indirect=True)
def test_sandboxes_that_do_not_run_count(thawd: Thawd) -> None:
    def used() -> dict[str, int]:
        return thawd.api.call("GET", "/v1/info").json["quotas"]["sandboxes"]

    thawd.create("runs")
    thawd.create("made", start=False)
    thawd.create("paused")
    assert thawd.api.call("POST", "/v1/sandboxes/paused/pause", {}).status == 200
    for method, target, value in (
        ("PUT", "/v1/sandboxes/more", {"start": False}),
        ("PUT", "/v1/sandboxes/more", {}),
        ("POST", "/v1/sandboxes", {"start": False}),
    ):
        answer = thawd.api.call(method, target, value)
        assert (answer.status, answer.code) == (503, "capacity")
        assert "max_sandboxes" in answer.json["error"]["message"]
    fork = thawd.api.call("POST", "/v1/sandboxes/runs/fork", {}).json["forks"][0]
    assert fork["error"]["code"] == "capacity"
    thawd.kill9()
    thawd.start()
    assert used() == {"used": 3, "limit": 3} and thawd.create("made", start=False)
    assert refused(thawd, "PUT", "/v1/sandboxes/more", {"start": False})[1] == "capacity"
    # A lower one ends nothing.
    thawd.stop()
    thawd.lines = ["max_sandboxes = 1"]
    thawd.start()
    assert thawd.state_of("runs") == "running" and used()["used"] == 3
    for name in "made", "paused", "runs":
        assert thawd.api.call("DELETE", f"/v1/sandboxes/{name}").status == 204
    thawd.create("more", start=False)
    assert used() == {"used": 1, "limit": 1}


@pytest.mark.parametrize("thawd", [["guest_timeout = 200ms"]], indirect=True)
def test_deaf_guest_has_no_longer_than_the_setting(thawd: Thawd) -> None:
    thawd.create("a")
    (thawd.state / "silent").touch()
    for method, target, value, status in (
        ("POST", "/v1/sandboxes/a/exec", {"argv": ["true"]}, 502),
        ("GET", "/v1/sandboxes/a/files?path=/etc/hosts", None, 502),
        ("GET", "/v1/sandboxes/a/stats", None, 504),
        ("GET", "/v1/sandboxes/a/ports/80/", None, 504),
    ):
        answer = thawd.api.call(method, target, value, timeout_s=30)
        assert answer.status == status, (target, answer.body)


@pytest.mark.parametrize(
    "thawd",
    [["guest_timeout = 1h", "port_connect_timeout = 1h", "max_requests = 8"]],
    indirect=True,
)
def test_who_left_waits_for_no_deaf_guest(thawd: Thawd) -> None:
    thawd.create("a")
    thawd.create("other", start=False)
    (thawd.state / "silent").touch()
    calls: list[tuple[str, str, object]] = [
        ("POST", "/v1/sandboxes/a/exec", {"argv": ["true"]}),
        ("GET", "/v1/sandboxes/a/files?path=/etc/hosts", None),
        ("GET", "/v1/sandboxes/a/ports/80/", None),
    ]
    waiting = [begin(thawd, *call) for call in calls * 4]

    def patch() -> int:
        return thawd.api.call("PATCH", "/v1/sandboxes/other", {}).status

    assert eventually(lambda: patch() == 503)
    for connection in waiting:
        connection.close()
    assert eventually(lambda: patch() == 200)


def test_page_faults_of_machines(thawd: Thawd) -> None:
    def total(kind: str) -> int:
        text = thawd.api.call("GET", "/metrics").body.decode()
        assert "# TYPE thaw_vmm_page_faults_total counter" in text
        found = re.search(rf'^thaw_vmm_page_faults_total{{kind="{kind}"}} (\d+)$', text, re.M)
        assert found
        return int(found[1])

    def of_process(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])

    assert total("minor") == total("major") == 0
    pids = [thawd.machine_pid(thawd.create(name)["id"]) for name in "ab"]
    least = sum(map(of_process, pids))
    assert least > 0
    first = total("minor")
    assert least <= first <= sum(map(of_process, pids))
    # It is a counter: those of one that has ended stay.
    assert thawd.api.call("DELETE", "/v1/sandboxes/a").status == 204
    assert total("minor") >= first and total("major") >= 0
    thawd.kill9()
    thawd.start()
    least = of_process(pids[1])
    assert total("minor") >= least > 0
