# SPDX-License-Identifier: Apache-2.0
"""Sandboxes by name when something is in the way: a busy one, a full or locked database, quotas."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

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
        stop = pool.submit(
            thawd.api.call, "POST", "/v1/sandboxes/busy/stop", {"grace_ms": 600000}
        )
        assert eventually(lambda: thawd.state_of("busy") == "stopping")
        waiting = [begin(thawd, *call) for call in calls]
        # With the stop that is all there is room for.
        assert eventually(
            lambda: thawd.api.call("PATCH", "/v1/sandboxes/other", {}).status == 503
        )
        for connection in waiting:
            connection.close()
        assert eventually(
            lambda: thawd.api.call("PATCH", "/v1/sandboxes/other", {}).status == 200
        )
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
