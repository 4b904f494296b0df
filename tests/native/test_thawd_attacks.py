# SPDX-License-Identifier: Apache-2.0
"""What breaks a thawd that trusts its clients, its guests or its operator too much."""

from __future__ import annotations

import contextlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from daemon import (
    THAWD,
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
