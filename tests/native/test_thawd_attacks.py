# SPDX-License-Identifier: Apache-2.0
"""What breaks a thawd that trusts its clients, its guests or its operator too much."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from daemon import (
    THAW,
    THAWD,
    TOP,
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

LYING_SHIM = TOP / "tests/native/lying_shim.py"


def test_one_thawd_for_each_state_folder(thawd: Thawd) -> None:
    box = thawd.create("a")
    other = fresh_thawd()
    try:
        other.config.write_text(f"socket = {other.socket}\njail = off\n")
        second = subprocess.run(
            [THAWD, "--config", other.config],
            env=thawd.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        remove_thawd(other)
    assert second.returncode == 1
    assert "another thawd serves this state folder" in second.stderr
    assert alive(thawd.machine_pid(box["id"])) and thawd.state_of("a") == "running"
    # One that was killed leaves nothing that holds it.
    thawd.kill9()
    thawd.start()
    assert thawd.inspect("a")["id"] == box["id"]


def test_destroy_does_not_wait_for_a_stop(thawd: Thawd) -> None:
    """Nor does DELETE: the grace of a stop may be ten minutes."""
    thawd.misbehave.write_text("no-shutdown")
    for name, method, action in ("a", "POST", "/destroy"), ("b", "DELETE", ""):
        thawd.create(name)
        with ThreadPoolExecutor() as pool:
            stop = pool.submit(
                thawd.api.call, "POST", f"/v1/sandboxes/{name}/stop", {"grace_ms": 600000}
            )
            assert eventually(lambda name=name: thawd.state_of(name) == "stopping")
            answer = thawd.api.call(method, f"/v1/sandboxes/{name}{action}")
            assert answer.status == (200 if action else 204)
            assert stop.result().status == 200


@pytest.mark.parametrize("thawd", [["max_requests = 8"]], indirect=True)
def test_readers_that_wait_leave_room(thawd: Thawd) -> None:
    """As many as there is room for: one can still look, and end a sandbox."""
    thawd.create("a")
    with contextlib.ExitStack() as streams:
        statuses = [
            streams.enter_context(thawd.api.stream("GET", "/v1/events")).status for _ in range(9)
        ]
        assert statuses == [200] * 6 + [503] * 3
        for target in "/healthz", "/version", "/metrics", "/v1/info", "/v1/sandboxes":
            assert thawd.api.call("GET", target).status == 200, target
        assert thawd.state_of("a") == "running"
        answer = thawd.api.call("POST", "/v1/sandboxes/a/exec", {"argv": ["true"]})
        assert answer.status == 503 and "Retry-After".lower() in answer.headers
        assert thawd.api.call("DELETE", "/v1/sandboxes/a").status == 204


def test_a_guest_that_never_answers() -> None:
    """Every call comes to its end, though its client stays."""
    made = fresh_thawd("guest_timeout = 200ms", THAW_FAKE_SHIM=str(LYING_SHIM))
    try:
        made.start()
        made.create("a")
        call = made.api.call
        for spec in {}, {"detach": True}, {"timeout_ms": 600000}:
            answer = call("POST", "/v1/sandboxes/a/exec", {"argv": ["stuck"], **spec})
            assert (answer.status, answer.code) == (502, "guest_lost"), spec
            assert "does not answer" in answer.json["error"]["message"]
        files = "/v1/sandboxes/a/files"
        for method, target, value in (
            ("GET", f"{files}?path=/lie/stuck", None),
            ("GET", f"{files}/watch?path=/lie/stuck", None),
            ("POST", f"{files}/mkdir", {"path": "/lie/stuck"}),
        ):
            answer = call(method, target, value)
            assert (answer.status, answer.code) == (502, "guest_lost"), target
        answer = call("PUT", f"{files}?path=/lie/stuck", body=bytes(1 << 20))
        assert (answer.status, answer.code) == (502, "guest_lost")
    finally:
        remove_thawd(made)


def test_exec_while_it_starts(thawd: Thawd) -> None:
    """Whoever comes as it begins to run waits for it, and is not told that it is gone."""
    statuses = set()
    for i in range(5):
        target = f"/v1/sandboxes/a{i}"
        with ThreadPoolExecutor(4) as pool:
            created = pool.submit(thawd.api.call, "PUT", target, {"entrypoint": ["sleep", "60"]})
            while not created.done():
                answers = pool.map(
                    lambda _, target=target: thawd.api.call(
                        "POST", f"{target}/exec", {"argv": ["true"]}
                    ),
                    range(3),
                )
                statuses |= {answer.status for answer in answers}
    assert statuses <= {200, 404}


def test_one_snapshot_of_a_name(thawd: Thawd) -> None:
    for name in "abcd":
        thawd.create(name)
    with ThreadPoolExecutor() as pool:
        answers = pool.map(
            lambda box: thawd.api.call("POST", f"/v1/sandboxes/{box}/snapshots", {"name": "s"}),
            "abcd",
        )
        statuses = sorted(answer.status for answer in answers)
    assert statuses == [201, 409, 409, 409]
    assert len(thawd.api.call("GET", "/v1/snapshots").json["snapshots"]) == 1


def test_cp_out_follows_no_link_that_came_before(thawd: Thawd, tmp_path: Path) -> None:
    """The sandbox has its folder copied as a link first, then as a folder."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "guest").mkdir()
    source = tmp_path / "guest/out"
    source.symlink_to(tmp_path / "elsewhere")
    thawd.create("a")

    def copy() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [THAW, "cp", f"a:{source}", tmp_path / "here"],
            env={**thawd.env, "THAW_SOCKET": thawd.socket},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert copy().returncode == 0 and (tmp_path / "here/out").is_symlink()
    source.unlink()
    source.mkdir()
    (source / "key").touch()
    refused = copy()
    assert refused.returncode == 1 and "is a link" in refused.stderr
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "here/out").unlink()
    assert copy().returncode == 0 and copy().returncode == 0
    assert (tmp_path / "here/out/key").exists()


def test_stuck_guests_do_not_add_up_at_the_start() -> None:
    """Each is asked for its execs, and may take five seconds; each here waits for the others."""
    made = fresh_thawd(THAW_FAKE_SHIM=str(LYING_SHIM))
    try:
        made.start()
        for name in "abcd":
            made.create(name)
        made.kill9()
        (made.state / "together").write_text("4")
        made.start()
        assert [made.state_of(name) for name in "abcd"] == ["running"] * 4
        assert "can't be listed" not in made.log.read_text()
    finally:
        remove_thawd(made)


def test_a_change_that_is_refused_is_none(thawd: Thawd) -> None:
    """One that can't be written down is not in effect until the next start, either."""
    thawd.create("a", labels={"x": "1"})
    with contextlib.closing(sqlite3.connect(thawd.state / "thawd.db")) as db:
        db.execute("ALTER TABLE boxes RENAME TO gone")
        change = {"labels": {"x": "2"}, "hard_timeout_ms": 1000}
        assert thawd.api.call("PATCH", "/v1/sandboxes/a", change).status == 500
        box = thawd.inspect("a")
        assert (box["labels"], box["hard_timeout_ms"]) == ({"x": "1"}, None)
        db.execute("ALTER TABLE gone RENAME TO boxes")
    assert thawd.api.call("PATCH", "/v1/sandboxes/a", {"labels": {"x": "2"}}).status == 200
    assert thawd.inspect("a")["labels"] == {"x": "2"}


def test_delete_does_not_wait_for_a_start(thawd: Thawd) -> None:
    """A machine that never runs has two minutes."""
    thawd.misbehave.write_text("start-hangs")
    with ThreadPoolExecutor() as pool:
        start = pool.submit(thawd.api.call, "PUT", "/v1/sandboxes/a", {}, timeout_s=100)
        assert eventually(lambda: list(thawd.state.glob("run/*/pid")))
        assert thawd.api.call("DELETE", "/v1/sandboxes/a", timeout_s=40).status == 204
        assert start.result().status == 502 and start.result().code == "guest_lost"
    assert not thawd.machines()


def test_destroy_does_not_wait_for_a_start(thawd: Thawd) -> None:
    """What somebody ended has not failed."""
    thawd.create("a", start=False)
    thawd.misbehave.write_text("start-hangs")
    with ThreadPoolExecutor() as pool:
        start = pool.submit(thawd.api.call, "POST", "/v1/sandboxes/a/start", {}, timeout_s=100)
        assert eventually(lambda: list(thawd.state.glob("run/*/pid")))
        answer = thawd.api.call("POST", "/v1/sandboxes/a/destroy", {}, timeout_s=40)
        assert start.result().status == 502 and start.result().code == "guest_lost"
    assert answer.json["state"] == "stopped" and answer.json["stop"]["reason"] == "destroyed"
    thawd.misbehave.unlink()
    assert thawd.api.call("POST", "/v1/sandboxes/a/start", {}).status == 200
