# SPDX-License-Identifier: Apache-2.0
"""Execs of thawd with a real guest: over kill -9 of thawd, a pause, and in a fork.

The whole matrix is in tests/native/test_thawd_exec.py.
"""

from __future__ import annotations

import base64
import signal

from test_thawd import Thawd, eventually, thawd  # noqa: F401

EXECS = 50


def log_of(thawd: Thawd, name: str, ident: str) -> bytes:  # noqa: F811
    data, cursor = b"", 0
    while True:
        page = thawd.ok("GET", f"/{name}/execs/{ident}/logs?cursor={cursor}")
        for entry in page["entries"]:
            text = entry["data"].encode()
            data += text if entry["encoding"] == "utf-8" else base64.b64decode(text)
        if page["next_cursor"] == cursor:
            return data
        cursor = page["next_cursor"]


def test_thawd_is_killed_during_fifty_execs(thawd: Thawd) -> None:  # noqa: F811
    """Acceptance 3: all end with their right output and code."""
    thawd.ok("PUT", "/a", {})
    script = "seq 1 $1; until [ -e /run/gate ]; do sleep 1; done; seq 1 $1 >&2; exit $1"
    idents = {}
    for i in range(EXECS):
        argv = ["sh", "-c", script, "sh", str(i)]
        idents[thawd.ok("POST", "/a/exec", {"argv": argv, "detach": True})["id"]] = i
    last = list(idents)[-1]
    assert eventually(lambda: log_of(thawd, "a", last))
    thawd.end(signal.SIGKILL)
    thawd.start()
    thawd.sh("a", "touch /run/gate")
    for ident, i in idents.items():
        found = thawd.ok("GET", f"/a/execs/{ident}/wait?timeout_ms=120000")
        assert (found["exit_code"], found["lost"]) == (i, False), found
        once = "".join(f"{n}\n" for n in range(1, i + 1)).encode()
        assert log_of(thawd, "a", ident) == once * 2


def test_pause_fork_and_time_out(thawd: Thawd) -> None:  # noqa: F811
    thawd.ok("PUT", "/a", {})
    script = "echo before; until [ -e /run/gate ]; do sleep 0.2; done; echo after; exit 6"
    argv = ["sh", "-c", script]
    ident = thawd.ok("POST", "/a/exec", {"argv": argv, "detach": True})["id"]
    assert eventually(lambda: log_of(thawd, "a", ident))
    thawd.ok("POST", "/a/pause", {})
    thawd.ok("POST", "/a/resume", {})
    thawd.ok("POST", "/a/fork", {"names": ["b"]})
    for name in ("a", "b"):
        found = thawd.ok("GET", f"/{name}/execs/{ident}")
        assert (found["argv"], found["state"], found["detached"]) == (argv, "running", True)
        thawd.sh(name, "touch /run/gate")
        found = thawd.ok("GET", f"/{name}/execs/{ident}/wait?timeout_ms=120000")
        assert (found["exit_code"], found["lost"]) == (6, False), (name, found)
        assert log_of(thawd, name, ident) == b"before\nafter\n"
    argv = ["sh", "-c", "echo partial; setsid sleep 1000 & sleep 1000"]
    result = thawd.ok("POST", "/a/exec", {"argv": argv, "timeout_ms": 2000})
    assert (result["exit_code"], result["timed_out"], result["stdout"]) == (124, True, "partial\n")
    assert thawd.sh("a", "! pgrep -x sleep") == ""
