# SPDX-License-Identifier: Apache-2.0
"""Execs over the API of thawd: real shims behind stand-ins for machines.

The same with guests: tests/vm/test_thawd_exec.py.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_client import Answer, ApiClient, Stream
from daemon import Thawd, alive, eventually, fresh_thawd, needs_thawd, remove_thawd
from ws_client import BINARY, PING, Closed, WebSocket, upgrade

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))

import shim  # noqa: E402

pytestmark = needs_thawd
A = "/v1/sandboxes/a"
MIB = 1 << 20
SSE = {"Accept": "text/event-stream"}
SLEEP = re.compile(r"(?<=sleep[ \0])1\d\d\d\b")


def mark(text: str) -> str:
    """`sleep 1007` becomes a sleep of this test run's own, which processes() can find: the guests
    here are no guests."""
    return SLEEP.sub(lambda found: f"{found[0]}.{os.getpid()}", text)


def words(argv: list[str]) -> list[str]:
    """The same for an argv."""
    return mark("\0".join(argv)).split("\0")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Thawd]:
    """One for all tests that leave nothing behind: sandboxes a and b run."""
    made = fresh_thawd()
    try:
        made.start()
        made.create("a")
        made.create("b")
        yield made
    finally:
        remove_thawd(made)


@pytest.fixture
def own() -> Iterator[Thawd]:
    """One that may be killed; sandbox a runs."""
    made = fresh_thawd()
    try:
        made.start()
        made.create("a")
        yield made
    finally:
        remove_thawd(made)


def run(api: ApiClient, argv: list[str], status: int = 200, where: str = A, **more: Any) -> Any:  # noqa: ANN401
    answer = api.call("POST", f"{where}/exec", {"argv": words(argv), **more})
    assert answer.status == status, (answer.status, answer.body)
    return answer.json


def sh(api: ApiClient, script: str, **more: Any) -> Any:  # noqa: ANN401
    return run(api, ["sh", "-c", script], **more)


def detach(api: ApiClient, script: str, where: str = A, **more: Any) -> str:  # noqa: ANN401
    return sh(api, script, status=202, where=where, detach=True, **more)["id"]


def get(api: ApiClient, target: str, **query: object) -> Any:  # noqa: ANN401
    text = "&".join(f"{name}={value}" for name, value in query.items())
    answer = api.call("GET", A + target + (f"?{text}" if text else ""))
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json


def wait(api: ApiClient, ident: str) -> Any:  # noqa: ANN401
    """The exec when it has ended."""
    while True:
        found = get(api, f"/execs/{ident}/wait", timeout_ms=20000)
        if found["state"] == "ended":
            return found


def wait_line(api: ApiClient, ident: str, **more: object) -> Any:  # noqa: ANN401
    answer = api.call("POST", f"{A}/execs/{ident}/wait-for-log", {"timeout_ms": 60000, **more})
    assert answer.status == 200, answer.body
    return answer.json


def post(api: ApiClient, target: str, value: object = None) -> Answer:
    return api.call("POST", A + target, {} if value is None else value)


def data_of(piece: dict[str, Any]) -> bytes:
    if piece.get("encoding") == "utf-8":
        return piece["data"].encode()
    return base64.b64decode(piece["data"])


def log_of(api: ApiClient, ident: str, stream: str | None = None, **query: object) -> bytes:
    """All output that is there, page by page."""
    data, cursor = b"", query.pop("cursor", 0)
    while True:
        more = {"stream": stream} if stream else {}
        page = get(api, f"/execs/{ident}/logs", cursor=cursor, **more, **query)
        data += b"".join(data_of(entry) for entry in page["entries"])
        if page["next_cursor"] == cursor:
            return data
        cursor = page["next_cursor"]


def events(api: ApiClient, argv: list[str], **more: Any) -> Stream:  # noqa: ANN401
    return api.stream("POST", f"{A}/exec", {"argv": words(argv), **more}, headers=SSE)


def processes(marker: str) -> list[int]:
    """With MARKER in their command line."""
    found = []
    marker = mark(marker)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (path / "cmdline").read_bytes() and alive(int(path.name)):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


# --- one answer ---


def test_streams_code_and_counts(daemon: Thawd) -> None:
    result = sh(daemon.api, "echo out; echo err >&2; exit 7")
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    assert (result["stdout_bytes"], result["stderr_bytes"]) == (4, 4)
    assert (result["exit_code"], result["signal"], result["timed_out"]) == (7, None, False)
    assert result["drained"]
    assert not result["truncated"]
    assert result["pid"] > 0
    assert result["duration_ms"] >= 0


@pytest.mark.parametrize("code", [0, 1, 126, 127, 255])
def test_exit_codes(daemon: Thawd, code: int) -> None:
    assert sh(daemon.api, f"exit {code}")["exit_code"] == code


def test_signal_is_128_plus_n(daemon: Thawd) -> None:
    result = sh(daemon.api, "kill -TERM $$")
    assert (result["exit_code"], result["signal"]) == (143, "SIGTERM")


def test_argv_goes_to_no_shell(daemon: Thawd) -> None:
    words = ["printf", "%s|", "a b", "$HOME", "*", "", 'q"uote', "ünï"]
    assert run(daemon.api, words)["stdout"] == 'a b|$HOME|*||q"uote|ünï|'


def test_environment_is_what_is_given(daemon: Thawd) -> None:
    lines = run(daemon.api, ["env"], env={"A": "1", "B": "x=y\nz"})["stdout"]
    assert lines.startswith("A=1\nB=x=y\nz\nPATH=")
    assert len(lines.splitlines()) == 4


def test_cwd_and_user(daemon: Thawd) -> None:
    result = sh(daemon.api, "pwd; id -u; id -g; id -G", cwd="/usr", user="1234:2345")
    assert result["stdout"] == "/usr\n1234\n2345\n2345\n"


def test_stdin_is_at_its_end_unless_given(daemon: Thawd) -> None:
    assert run(daemon.api, ["cat"])["stdout"] == ""
    assert run(daemon.api, ["cat"], stdin="hällo")["stdout"] == "hällo"
    raw = bytes(range(256))
    result = run(daemon.api, ["cat"], stdin=base64.b64encode(raw).decode(), stdin_encoding="base64")
    assert result["stdout_encoding"] == "base64"
    assert base64.b64decode(result["stdout"]) == raw


def test_a_long_stdin_passes_and_an_unread_one_holds_up_nobody(daemon: Thawd) -> None:
    text = "0123456789abcdef" * (3 * MIB // 16)
    result = run(daemon.api, ["sha256sum"], stdin=text)
    assert result["stdout"].split()[0] == hashlib.sha256(text.encode()).hexdigest()
    assert run(daemon.api, ["true"], stdin=text)["exit_code"] == 0


def test_output_that_is_not_text_is_base64_stream_by_stream(daemon: Thawd) -> None:
    result = sh(daemon.api, r"printf '\377\000'; echo fine >&2")
    assert (result["stdout_encoding"], result["stderr_encoding"]) == ("base64", "utf-8")
    assert base64.b64decode(result["stdout"]) == b"\xff\x00"
    assert run(daemon.api, ["echo"], encoding="base64")["stdout"] == "Cg=="


def test_output_beyond_the_cap_is_counted_and_the_command_ends_well(daemon: Thawd) -> None:
    result = sh(daemon.api, "yes ü | head -c 3000000; echo e >&2; exit 3", max_output_bytes=1000)
    assert result["truncated"]
    assert result["exit_code"] == 3
    assert result["stdout_bytes"] == 3000000
    assert result["stdout_encoding"] == "utf-8"  # no character is cut
    assert result["stdout"] == ("ü\n" * 334)[: len(result["stdout"])]
    assert 997 <= len(result["stdout"].encode()) <= 1000
    assert result["stderr"] == "e\n"
    none = sh(daemon.api, "echo abc", max_output_bytes=0)
    assert (none["stdout"], none["stdout_bytes"], none["truncated"]) == ("", 4, True)


def test_a_grandchild_that_holds_stdout_holds_up_nobody(daemon: Thawd) -> None:
    result = sh(daemon.api, "sleep 1007 & echo parent; exit 4", drain_ms=100)
    assert (result["stdout"], result["exit_code"], result["drained"]) == ("parent\n", 4, False)
    assert eventually(lambda: not processes("sleep\x001007"))


def test_time_out_has_what_came_before(daemon: Thawd) -> None:
    script = "echo before; setsid sleep 1008 & sleep 1009"
    result = sh(daemon.api, script, timeout_ms=300, drain_ms=100)
    assert (result["exit_code"], result["timed_out"]) == (124, True)
    assert result["stdout"] == "before\n"
    assert eventually(lambda: not processes("sleep\x001008") and not processes("sleep\x001009"))


@pytest.mark.parametrize(
    ("argv", "more", "stage", "errno"),
    [
        (["/no/such/file"], {}, "exec", "ENOENT"),
        (["no-such-word"], {}, "exec", "ENOENT"),
        (["/etc/passwd"], {}, "exec", "EACCES"),
        (["/"], {}, "exec", "EACCES"),
        (["true"], {"cwd": "/no/such/folder"}, "cwd", "ENOENT"),
        (["true"], {"cwd": "/etc/passwd"}, "cwd", "ENOTDIR"),
    ],
)
def test_what_can_not_start_says_why(
    daemon: Thawd, argv: list[str], more: dict[str, str], stage: str, errno: str
) -> None:
    error = run(daemon.api, argv, status=422, **more)["error"]
    assert (error["code"], error["details"]) == ("spawn_failed", {"stage": stage, "errno": errno})
    assert argv[0] in error["message"]
    with events(daemon.api, argv, **more) as stream:
        assert stream.status == 422
    assert run(daemon.api, argv, status=422, detach=True, **more)["error"]["code"] == "spawn_failed"


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": "echo hi"}, "argv"),
        ({"argv": [""]}, "argv[0]"),
        ({"argv": ["a", 1]}, "argv[1]"),
        ({"argv": ["true"], "env": {"A=B": "c"}}, "env"),
        ({"argv": ["true"], "env": {"": "c"}}, "env"),
        ({"argv": ["true"], "env": ["A=B"]}, "env"),
        ({"argv": ["true"], "user": "1000"}, "user"),
        ({"argv": ["true"], "user": "root:root"}, "user"),
        ({"argv": ["true"], "user": "4294967295:0"}, "user"),
        ({"argv": ["true"], "timeout_ms": -1}, "timeout_ms"),
        ({"argv": ["true"], "pty": {"cols": 0, "rows": 1}}, "pty.cols"),
        ({"argv": ["true"], "pty": {"lines": 1}}, "lines"),
        ({"argv": ["true"], "stdin": "x", "stdin_encoding": "base64"}, "base64"),
        ({"argv": ["true"], "encoding": "latin1"}, "encoding"),
        ({"argv": ["true"], "max_output_bytes": 1 << 40}, "max_output_bytes"),
        ({"argv": ["true"], "stdin_open": True}, "stdin_open"),
        ({"argv": ["true"], "tiemout_ms": 5}, "tiemout_ms"),
    ],
)
def test_requests_that_make_no_sense_are_refused_by_name(
    daemon: Thawd, request_: dict[str, Any], word: str
) -> None:
    answer = daemon.api.call("POST", f"{A}/exec", request_)
    assert answer.status == 400
    assert word in answer.json["error"]["message"]


def test_requests_that_are_too_long(daemon: Thawd) -> None:
    assert run(daemon.api, ["true", "x" * (2 * MIB)], status=413)["error"]["code"] == "too_large"
    assert run(daemon.api, ["true"], status=413, stdin="x" * (4 * MIB + 1))


def test_a_hundred_mebibytes_pass_with_flat_memory(daemon: Thawd) -> None:
    """Through the answer's cap, and through events read to the end."""
    before = rss_bytes(daemon.pid)
    result = sh(daemon.api, "head -c 104857600 /dev/zero", max_output_bytes=0)
    assert result["stdout_bytes"] == 100 * MIB
    total, peak = 0, 0
    with events(daemon.api, ["head", "-c", str(100 * MIB), "/dev/zero"]) as stream:
        for raw in stream.response:
            if raw.startswith(b'data: {"data"'):
                total += len(base64.b64decode(json.loads(raw[6:])["data"]))
                peak = max(peak, rss_bytes(daemon.pid))
    assert total == 100 * MIB
    assert peak - before < 24 * MIB


def test_a_slow_reader_holds_up_its_command_and_loses_nothing(daemon: Thawd) -> None:
    with events(daemon.api, ["seq", "1", "3000000"]) as stream:
        names = stream.events()
        ident = next(names).data["id"]
        where = f"/execs/{ident}"

        def printed() -> int:
            return get(daemon.api, where)["output_bytes"]

        # It stands still when ring, log window, and sockets are full, far from its end.
        last = -1
        while last != (last := printed()) or not last:
            time.sleep(0.3)
        assert last < 16 * MIB
        assert get(daemon.api, where)["state"] == "running"
        sha = hashlib.sha256()
        for event in names:
            if event.name == "stdout":
                sha.update(base64.b64decode(event.data["data"]))
            else:
                assert event.name == "exit"
                assert event.data["exit_code"] == 0
    whole = "".join(f"{i}\n" for i in range(1, 3000001)).encode()
    assert sha.hexdigest() == hashlib.sha256(whole).hexdigest()


# --- events ---


def test_events_come_as_things_happen(daemon: Thawd) -> None:
    script = "echo one; read x; echo got $x >&2; exit 5"
    with events(daemon.api, ["sh", "-c", script], stdin_open=True) as stream:
        seen = stream.events()
        start = next(seen)
        assert start.name == "start"
        out = next(seen)
        assert (out.name, data_of(out.data), out.data["cursor"]) == ("stdout", b"one\n", 0)
        ident = start.data["id"]
        assert get(daemon.api, f"/execs/{ident}")["pid"] == start.data["pid"]
        answer = daemon.api.call("PUT", f"{A}/execs/{ident}/stdin?eof=1", body=b"stdin\n")
        assert answer.status == 204
        err = next(seen)
        assert (err.name, data_of(err.data)) == ("stderr", b"got stdin\n")
        assert err.data["cursor"] == 4
        end = next(seen)
        assert (end.name, end.data["exit_code"]) == ("exit", 5)
        assert next(seen, None) is None


# --- clients that leave ---


@pytest.mark.parametrize("form", ["answer", "events", "frames"])
def test_a_client_that_leaves_takes_the_whole_tree_along(daemon: Thawd, form: str) -> None:
    number = 1100 + ["answer", "events", "frames"].index(form)
    script = f"setsid sleep {number} & sleep {number} & sleep {number}"
    marker = f"sleep\x00{number}"
    argv = words(["sh", "-c", script])
    if form == "frames":
        sock, status, _ = upgrade(daemon.socket, "POST", f"{A}/exec", "thaw-exec/1")
        assert status == 101
        sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(argv)))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(daemon.socket)
        body = json.dumps({"argv": argv}).encode()
        accept = "text/event-stream" if form == "events" else "application/json"
        head = f"POST {A}/exec HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert eventually(lambda: len(processes(marker)) >= 3)
    sock.close()
    assert eventually(lambda: not processes(marker))


def test_delete_kills_and_forgets(daemon: Thawd) -> None:
    ident = detach(daemon.api, "setsid sleep 1201 & sleep 1202")
    assert eventually(lambda: processes("sleep\x001201"))
    assert daemon.api.call("DELETE", f"{A}/execs/{ident}").status == 204
    assert not processes("sleep\x001202")
    assert eventually(lambda: not processes("sleep\x001201"))
    assert daemon.api.call("GET", f"{A}/execs/{ident}").status == 404
    assert daemon.api.call("DELETE", f"{A}/execs/{ident}").status == 404
    assert not list(daemon.state.glob(f"run/*/exec-{ident}*"))


# --- detached ones ---


def test_detached_list_inspect_logs_and_end(daemon: Thawd) -> None:
    ident = detach(
        daemon.api, "echo one; echo two >&2; read x; echo three; exit 9", stdin_open=True
    )
    assert wait_line(daemon.api, ident, text="two")["matched"]
    found = get(daemon.api, f"/execs/{ident}")
    assert (found["state"], found["detached"], found["ended"]) == ("running", True, None)
    assert found["argv"][0] == "sh"
    assert found in get(daemon.api, "/execs")["execs"]
    page = get(daemon.api, f"/execs/{ident}/logs")
    assert [(e["stream"], e["data"], e["cursor"]) for e in page["entries"]] == [
        ("stdout", "one\n", 0),
        ("stderr", "two\n", 4),
    ]
    assert (page["next_cursor"], page["ended"], page["exit_code"]) == (8, False, None)
    assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin", body=b"x\n").status == 204
    assert wait(daemon.api, ident)["exit_code"] == 9
    page = get(daemon.api, f"/execs/{ident}/logs", cursor=8)
    assert [e["data"] for e in page["entries"]] == ["three\n"]
    assert (page["next_cursor"], page["ended"], page["exit_code"]) == (14, True, 9)
    assert log_of(daemon.api, ident, stream="stderr") == b"two\n"
    tail = get(daemon.api, f"/execs/{ident}/logs", tail_bytes=3)
    assert [e["data"] for e in tail["entries"]] == ["ee\n"]
    answer = daemon.api.call("GET", f"{A}/execs/{ident}/logs?tail_bytes=3&cursor=1")
    assert answer.status == 400


def test_pages_cut_no_character(daemon: Thawd) -> None:
    text = "aä€😀" * 50
    ident = detach(daemon.api, "cat", stdin=text)
    wait(daemon.api, ident)
    cursor, data = 0, ""
    while True:
        page = get(daemon.api, f"/execs/{ident}/logs", cursor=cursor, limit_bytes=7)
        if not page["entries"]:
            break
        assert {e["encoding"] for e in page["entries"]} == {"utf-8"}
        data += "".join(e["data"] for e in page["entries"])
        cursor = page["next_cursor"]
    assert data == text


def test_follow_logs(daemon: Thawd) -> None:
    ident = detach(daemon.api, "echo one; read x; echo two; exit 3", stdin_open=True)
    with daemon.api.stream("GET", f"{A}/execs/{ident}/logs?follow=1", headers=SSE) as stream:
        seen = stream.events()
        assert data_of(next(seen).data) == b"one\n"
        assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin", body=b"\n").status == 204
        assert data_of(next(seen).data) == b"two\n"
        end = next(seen)
        assert (end.name, end.data["exit_code"]) == ("exit", 3)


def test_the_log_gives_up_the_oldest_and_says_so(own: Thawd) -> None:
    own.stop()
    own.start("exec_log_size = 1MiB")
    ident = detach(own.api, "seq 1 1000000")
    found = wait(own.api, ident)
    whole = "".join(f"{i}\n" for i in range(1, 1000001)).encode()
    assert found["output_bytes"] == len(whole)
    assert 0 < found["oldest_cursor"] < len(whole)
    page = get(own.api, f"/execs/{ident}/logs", cursor=10)
    assert page["dropped_bytes"] == found["oldest_cursor"] - 10
    data = log_of(own.api, ident, cursor=found["oldest_cursor"])
    assert data == whole[found["oldest_cursor"] :]
    assert sum(f.stat().st_size for f in own.state.glob(f"run/*/exec-{ident}.log*")) <= MIB


def test_wait_for_a_line(daemon: Thawd) -> None:
    script = (
        "echo a start; read x; echo listening on 80 >&2; printf 'no end'; read x; echo; echo done"
    )
    ident = detach(daemon.api, script, stdin_open=True)
    assert wait_line(daemon.api, ident, text="start")["cursor"] == 0
    assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin", body=b"\n").status == 204
    found = wait_line(daemon.api, ident, regex="on [0-9]+$")
    assert (found["line"], found["ended"]) == ("listening on 80", False)
    assert found["cursor"] in (8, 14)  # two pipes: the order of what came together is nobody's
    # Not yet a line, and the other stream.
    assert not wait_line(daemon.api, ident, text="no end", timeout_ms=0)["matched"]
    assert not wait_line(daemon.api, ident, text="80", stream="stdout", timeout_ms=0)["matched"]
    assert not wait_line(daemon.api, ident, text="start", cursor=8, timeout_ms=0)["matched"]
    with ThreadPoolExecutor() as pool:
        later = pool.submit(wait_line, daemon.api, ident, text="no end")
        assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin?eof=1", body=b"\n").status == 204
        assert later.result()["line"] == "no end"
    wait(daemon.api, ident)
    never = wait_line(daemon.api, ident, text="never")
    assert (never["matched"], never["ended"], never["line"]) == (False, True, None)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"text": ""},
        {"text": "a", "regex": "b"},
        {"regex": "("},
        {"regex": "((a{1,200}){1,200}){1,200}"},
        {"regex": r"(a)\1"},
        {"regex": "(" * 100 + ")" * 100},
        {"text": "a", "timeout_ms": 1 << 40},
        {"text": "a", "stream": "both"},
    ],
)
def test_bad_waits_are_refused(daemon: Thawd, request_: dict[str, Any]) -> None:
    ident = detach(daemon.api, "true")
    assert post(daemon.api, f"/execs/{ident}/wait-for-log", request_).status == 400


def test_a_line_without_end_costs_no_more_than_a_line(daemon: Thawd) -> None:
    before = rss_bytes(daemon.pid)
    ident = detach(daemon.api, "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo behind")
    assert wait_line(daemon.api, ident, text="behind")["matched"]
    assert rss_bytes(daemon.pid) - before < 16 * MIB


def test_signals_and_kill(daemon: Thawd) -> None:
    trap = "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done"
    ident = detach(daemon.api, trap)
    assert wait_line(daemon.api, ident, text="ready")["matched"]
    for value in ("SIGUSR1", "USR1", int(signal.SIGUSR1)):
        assert post(daemon.api, f"/execs/{ident}/signal", {"signal": value}).status == 204
    assert wait_line(daemon.api, ident, text="usr1")["matched"]
    assert post(daemon.api, f"/execs/{ident}/signal", {"signal": 65}).status == 400
    assert post(daemon.api, f"/execs/{ident}/signal", {"signal": "SIGNOPE"}).status == 400
    assert post(daemon.api, f"/execs/{ident}/kill").status == 204
    found = wait(daemon.api, ident)
    assert (found["exit_code"], found["signal"]) == (137, "SIGKILL")
    answer = post(daemon.api, f"/execs/{ident}/signal", {"signal": "TERM"})
    assert (answer.status, answer.code) == (409, "wrong_state")
    assert post(daemon.api, f"/execs/{ident}/kill").status == 204


def test_stdin_in_pieces_and_a_flood_of_it(daemon: Thawd) -> None:
    ident = detach(daemon.api, "sha256sum", stdin_open=True)
    pieces = [os.urandom(100_000) for _ in range(80)]
    for i, piece in enumerate(pieces):
        end = "?eof=1" if i == len(pieces) - 1 else ""
        answer = daemon.api.call("PUT", f"{A}/execs/{ident}/stdin{end}", body=piece)
        assert answer.status == 204, answer.body
    assert wait(daemon.api, ident)["exit_code"] == 0
    assert (
        log_of(daemon.api, ident).split()[0].decode()
        == hashlib.sha256(b"".join(pieces)).hexdigest()
    )
    assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin", body=b"x").code == "wrong_state"
    # One that reads nothing: the sender waits, and the command can still be killed.
    ident = detach(daemon.api, "sleep 1300", stdin_open=True)
    before = rss_bytes(daemon.pid)
    with ThreadPoolExecutor() as pool:
        flood = pool.submit(
            daemon.api.call, "PUT", f"{A}/execs/{ident}/stdin", body=bytes(20 * MIB)
        )
        time.sleep(0.2)
        assert not flood.done()
        assert rss_bytes(daemon.pid) - before < 16 * MIB
        assert post(daemon.api, f"/execs/{ident}/kill").status == 204
        assert flood.result().status == 409
    ident = detach(daemon.api, "cat")
    assert daemon.api.call("PUT", f"{A}/execs/{ident}/stdin", body=b"x").code == "wrong_state"


def test_ended_ones_are_bounded_and_detached_ones_stay_longest(daemon: Thawd) -> None:
    first = detach(daemon.api, "echo keep me")
    wait(daemon.api, first)
    for _ in range(80):
        run(daemon.api, ["true"], where="/v1/sandboxes/a")

    def ended() -> list[str]:
        known = get(daemon.api, "/execs")["execs"]
        return [e["id"] for e in known if e["state"] == "ended"]

    assert eventually(lambda: len(ended()) <= 64)
    assert len(ended()) >= 32
    assert first in ended()
    assert log_of(daemon.api, first) == b"keep me\n"
    assert len(list(daemon.state.glob("run/*/exec-*.json"))) <= 64 * 2 + 8


# --- frames ---


def frames(daemon: Thawd, argv: list[str], **more: Any) -> tuple[socket.socket, str]:  # noqa: ANN401
    sock, status, headers = upgrade(daemon.socket, "POST", f"{A}/exec", "thaw-exec/1")
    assert status == 101
    sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(words(argv), **more)))
    return sock, headers["x-thaw-exec"]


def all_frames(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Until the last one, behind which the connection must end."""
    for kind, body in shim.frames(sock):
        yield kind, body
        if kind in (shim.EXIT, shim.ERROR):
            assert sock.recv(1) == b""
            return


def attach(daemon: Thawd, ident: str, cursor: int | None = None) -> socket.socket:
    query = "" if cursor is None else f"?cursor={cursor}"
    target = f"{A}/execs/{ident}/attach{query}"
    sock, status, headers = upgrade(daemon.socket, "GET", target, "thaw-exec/1")
    assert status == 101
    assert headers["x-thaw-exec"] == ident
    return sock


def test_frames_are_those_of_a_shim(daemon: Thawd) -> None:
    sock, ident = frames(daemon, ["sh", "-c", "cat; echo err >&2; exit 6"], stdin=True)
    sock.sendall(shim.frame(shim.STDIN, b"abc") + shim.frame(shim.STDIN, b"def"))
    sock.sendall(shim.frame(shim.STDIN_EOF))
    result = shim.collect(sock)
    assert (result.stdout, result.stderr) == (b"abcdef", b"err\n")
    assert (result.kind, result.value) == (shim.EXIT_CODE, 6)
    assert get(daemon.api, f"/execs/{ident}")["exit_code"] == 6
    sock, _ = frames(daemon, ["/no/such"])
    kinds = list(all_frames(sock))
    assert [kind for kind, _ in kinds] == [shim.ERROR]
    assert struct.unpack("<II", kinds[0][1][:8]) == (3, 2)


def test_frames_signal_kill_and_stdin_window(daemon: Thawd) -> None:
    sock, _ = frames(
        daemon, ["sh", "-c", "trap 'exit 33' TERM; echo up; while :; do sleep 0.01; done"]
    )
    stream = all_frames(sock)
    assert next(stream)[0] == shim.STARTED
    assert next(stream) == (shim.STDOUT, b"up\n")
    sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGTERM)))
    assert next(stream)[0] == shim.EXIT
    sock, _ = frames(daemon, ["sleep", "1400"], stdin=True)
    piece = shim.frame(shim.STDIN, bytes(65536))
    sock.sendall(piece * 4)  # the whole window, unread
    sock.sendall(shim.frame(shim.KILL))
    end = [body for kind, body in all_frames(sock) if kind == shim.EXIT]
    assert struct.unpack("<II", end[0][:8]) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    # Ten windows to one that reads: as much as there is credit for.
    sock, _ = frames(daemon, ["wc", "-c"], stdin=True)
    room, sent = 4, 0
    for kind, body in all_frames(sock):
        if kind == shim.STARTED or kind == shim.STDIN_CREDIT:
            room += struct.unpack("<I", body)[0] // 65536 if kind == shim.STDIN_CREDIT else 0
            while room and sent < 40:
                sock.sendall(piece)
                room, sent = room - 1, sent + 1
            if sent == 40:
                sock.sendall(shim.frame(shim.STDIN_EOF))
                sent = 41
        elif kind == shim.STDOUT:
            assert int(body) == 40 * 65536


@pytest.mark.parametrize(
    "data",
    [
        shim.frame(shim.LIST),
        shim.frame(shim.STDIN, b"x"),
        b"\xff" * 64,
        shim.frame(shim.EXEC, b"\0" * 40),
        shim.frame(shim.EXEC, shim.exec_payload(["true"], detach=True)),
        shim.frame(shim.EXEC, shim.exec_payload(["true"], files=True)),
        shim.frame(shim.EXEC, shim.exec_payload(words(["sleep", "1401"]))) + shim.frame(shim.LIST),
        shim.frame(shim.EXEC, shim.exec_payload(words(["sleep", "1401"])))
        + shim.frame(shim.RESIZE, struct.pack("<HH", 1, 1)),
        shim.frame(shim.EXEC, shim.exec_payload(words(["sleep", "1401"]), stdin=True))
        + shim.frame(shim.STDIN, bytes(65536)) * 16,
    ],
    ids=range(9),
)
def test_malformed_frames_end_in_an_error(daemon: Thawd, data: bytes) -> None:
    sock, status, _ = upgrade(daemon.socket, "POST", f"{A}/exec", "thaw-exec/1")
    assert status == 101
    with contextlib.suppress(ConnectionError):  # nobody reads on
        sock.sendall(data)
    kinds = []
    with contextlib.suppress(ConnectionResetError):  # there was more that nobody read
        for kind, _ in shim.frames(sock):
            kinds.append(kind)
            if kind == shim.ERROR:
                break
    assert kinds[-1] == shim.ERROR
    sock.close()
    assert eventually(lambda: not processes("sleep\x001401"))


def test_attach_by_frames_at_a_cursor(daemon: Thawd) -> None:
    ident = detach(daemon.api, "echo one; echo two >&2; read x; echo $x; exit 2", stdin_open=True)
    assert wait_line(daemon.api, ident, text="two")["matched"]
    sock = attach(daemon, ident, 4)
    stream = all_frames(sock)
    kind, body = next(stream)
    assert kind == shim.ATTACHED
    assert struct.unpack("<QQ", body[:16]) == (4, 8)
    kind, body = next(stream)
    if kind == shim.STDIN_CREDIT:  # it may come before or behind output
        kind, body = next(stream)
    assert (kind, body) == (shim.STDERR, b"two\n")
    sock.sendall(shim.frame(shim.STDIN, b"in\n"))
    rest = [(k, b) for k, b in stream if k != shim.STDIN_CREDIT]
    assert rest[0] == (shim.STDOUT, b"in\n")
    assert rest[-1][0] == shim.EXIT
    # One that has ended can be attached, too.
    again = [(k, b) for k, b in all_frames(attach(daemon, ident, 0)) if k != shim.STDIN_CREDIT]
    assert again[1:-1] == [(shim.STDOUT, b"one\n"), (shim.STDERR, b"two\n"), (shim.STDOUT, b"in\n")]
    # A client of a detached one that leaves ends nothing.
    ident = detach(daemon.api, "echo up; sleep 1402")
    assert wait_line(daemon.api, ident, text="up")["matched"]
    attach(daemon, ident).close()
    assert run(daemon.api, ["true"])["exit_code"] == 0
    assert get(daemon.api, f"/execs/{ident}")["state"] == "running"
    assert daemon.api.call("DELETE", f"{A}/execs/{ident}").status == 204


# --- terminals ---


def terminal(daemon: Thawd, argv: list[str], **more: Any) -> tuple[WebSocket, str]:  # noqa: ANN401
    ws = WebSocket(daemon.socket, f"{A}/exec")
    assert ws.status == 101
    ws.say({"argv": argv, "pty": True, **more})
    ready = ws.receive()
    assert isinstance(ready, dict)
    assert ready["type"] == "ready", ready
    return ws, ready["id"]


def test_terminal_size_resize_eof_and_exit(daemon: Thawd) -> None:
    script = "stty size; read x; stty size; cat; exit 8"
    ws, ident = terminal(daemon, ["sh", "-c", script])
    assert ws.until(b"\n") == b"24 80\r\n"
    ws.say({"type": "resize", "cols": 132, "rows": 50})
    ws.write(b"\n")
    assert b"50 132" in ws.until(b"132\r\n")
    ws.say({"type": "eof"})
    _, end = ws.rest()
    assert (end["type"], end["exit_code"], end["id"]) == ("exit", 8, ident)
    with pytest.raises(Closed) as closed:
        ws.receive()
    assert closed.value.args[0] == 1000
    assert get(daemon.api, f"/execs/{ident}")["pty"]


def test_a_terminal_is_left_and_found_again_with_its_replay(daemon: Thawd) -> None:
    ws, ident = terminal(
        daemon, ["sh", "-c", "seq 1 60000; echo here; read x; echo got $x; exit 0"]
    )
    ws.until(b"here\r\n")
    ws.close()
    again = WebSocket(daemon.socket, f"{A}/execs/{ident}/attach")
    ready = again.receive()
    assert isinstance(ready, dict)
    size = get(daemon.api, f"/execs/{ident}")["output_bytes"]
    assert ready["cursor"] == size - (256 << 10)
    replay = again.until(b"here\r\n")
    assert len(replay) == 256 << 10
    assert post(daemon.api, f"/execs/{ident}/resize", {"cols": 20, "rows": 10}).status == 204
    again.write(b"back\n")
    out, end = again.rest()
    assert b"got back" in out
    assert end["exit_code"] == 0


def test_the_first_client_is_told_that_another_has_taken_over(daemon: Thawd) -> None:
    first, ident = terminal(daemon, ["sh", "-c", "stty -echo; echo up; read x; echo end $x"])
    first.until(b"up\r\n")
    second = WebSocket(daemon.socket, f"{A}/execs/{ident}/attach?cursor=0")
    ready = second.receive()
    assert isinstance(ready, dict)
    assert (ready["type"], ready["cursor"]) == ("ready", 0)
    _, told = first.rest()
    assert (told["type"], told["error"]["code"]) == ("error", "conflict")
    with pytest.raises(Closed):
        first.receive()
    # And by frames, from the second.
    third = attach(daemon, ident, 0)
    _, told = second.rest()
    assert told["error"]["code"] == "conflict"
    third.sendall(shim.frame(shim.RESIZE, struct.pack("<HH", 90, 30)))
    fourth = attach(daemon, ident, 0)
    last = list(all_frames(third))[-1]
    assert last[0] == shim.ERROR
    assert struct.unpack("<II", last[1][:8]) == (0, 116)  # ESTALE
    fourth.sendall(shim.frame(shim.STDIN, b"4\n"))
    assert b"".join(b for k, b in all_frames(fourth) if k == shim.STDOUT).endswith(b"end 4\r\n")


def test_a_socket_without_terminal_has_streams(daemon: Thawd) -> None:
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": ["sh", "-c", "cat; echo err >&2; exit 1"]})
    assert ws.receive()["type"] == "ready"
    ws.write(b"in")
    ws.say({"type": "eof"})
    assert ws.receive() == b"\x01in"
    out, end = ws.rest()
    assert out == b"\x02err\n"
    assert end["exit_code"] == 1
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": words(["sleep", "1500"])})
    assert ws.receive()["type"] == "ready"
    ws.say({"type": "signal", "signal": "TERM"})
    assert ws.rest()[1]["signal"] == "SIGTERM"
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": words(["sleep", "1501"])})
    assert ws.receive()["type"] == "ready"
    ws.close()
    assert eventually(lambda: not processes("sleep\x001501"))


def test_a_mebibyte_through_a_socket(daemon: Thawd) -> None:
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": ["cat"], "combined": True})
    assert ws.receive()["type"] == "ready"
    data = os.urandom(MIB)

    def feed() -> None:
        for at in range(0, MIB, 100_000):
            ws.write(data[at : at + 100_000])
        ws.say({"type": "eof"})

    thread = threading.Thread(target=feed)
    thread.start()
    out, end = ws.rest()
    thread.join()
    assert (out, end["exit_code"]) == (data, 0)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"argv":[]}', "invalid_request"),
        ('{"argv":["true"],"stdin":"x"}', "unknown_field"),
        ("not json", "invalid_request"),
        ('{"argv":["/no/such"]}', "spawn_failed"),
    ],
)
def test_first_messages_that_can_not_be(daemon: Thawd, text: str, code: str) -> None:
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.send(1, text.encode())
    answer = ws.receive()
    assert isinstance(answer, dict)
    assert (answer["type"], answer["error"]["code"]) == ("error", code)
    with pytest.raises(Closed):
        ws.receive()


def test_sockets_that_misbehave(daemon: Thawd) -> None:
    """The connection ends, the command with it, thawd goes on."""
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": words(["sleep", "1502"])})
    assert ws.receive()["type"] == "ready"
    ws.sock.sendall(bytes([0x80 | BINARY, 0x85]) + b"mask" + b"12345")  # fine
    ws.sock.sendall(bytes([0xF0 | BINARY, 0x85]) + b"mask" + b"12345")  # reserved bits
    with pytest.raises((Closed, ConnectionError)):
        ws.rest()
    assert eventually(lambda: not processes("sleep\x001502"))
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.sock.sendall(bytes([0x80 | BINARY, 0xFF]) + struct.pack(">Q", 1 << 50) + b"mask")
    with pytest.raises((Closed, ConnectionError)):
        ws.receive()
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.say({"argv": ["cat"], "pty": True})
    assert ws.receive()["type"] == "ready"
    ws.say({"type": "resize", "cols": 0, "rows": 1})
    assert ws.rest()[1]["error"]["code"] == "invalid_request"
    # Pings that nobody reads the answers of.
    before = rss_bytes(daemon.pid)
    ws = WebSocket(daemon.socket, f"{A}/exec")
    ws.sock.settimeout(1)
    with pytest.raises(TimeoutError):
        for _ in range(200_000):
            ws.send(PING, b"x" * 125)
    ws.close()
    assert rss_bytes(daemon.pid) - before < 8 * MIB
    no_key = upgrade(daemon.socket, "GET", f"{A}/exec", "websocket")
    assert no_key[1] == 400


# --- many, and two sandboxes ---


def test_a_hundred_and_twenty_eight_at_once_and_no_more(own: Thawd) -> None:
    own.create("b")
    idents = [detach(own.api, "read x; exit $x", stdin_open=True) for _ in range(128)]
    assert run(own.api, ["true"], status=429)["error"]["code"] == "too_many"
    assert run(own.api, ["true"], where="/v1/sandboxes/b")["exit_code"] == 0
    for i, ident in enumerate(idents):
        answer = own.api.call("PUT", f"{A}/execs/{ident}/stdin", body=f"{i}\n".encode())
        assert answer.status == 204
    # The oldest of those that have ended may be forgotten before they are asked for.
    for i, ident in list(enumerate(idents))[-60:]:
        assert wait(own.api, ident)["exit_code"] == i
    assert eventually(lambda: all(e["state"] == "ended" for e in get(own.api, "/execs")["execs"]))
    assert run(own.api, ["true"])["exit_code"] == 0


def test_execs_side_by_side_do_not_mix(daemon: Thawd) -> None:
    def one(i: int) -> bool:
        where = f"/v1/sandboxes/{'ab'[i % 2]}"
        result = sh(
            daemon.api, f"for k in 1 2 3; do echo {i}; echo {i} >&2; done; exit {i}", where=where
        )
        return (result["stdout"], result["stderr"], result["exit_code"]) == (
            f"{i}\n" * 3,
            f"{i}\n" * 3,
            i,
        )

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(100)))


def test_an_exec_of_another_sandbox_is_not_there(daemon: Thawd) -> None:
    ident = detach(daemon.api, "true")
    assert daemon.api.call("GET", f"/v1/sandboxes/b/execs/{ident}").status == 404
    assert daemon.api.call("GET", f"{A}/execs/{'0' * 32}").status == 404
    assert daemon.api.call("GET", f"{A}/execs/x").status == 404


# --- thawd is killed ---


def test_thawd_is_killed_during_fifty_execs(own: Thawd) -> None:
    """Detached and foreground ones alike: all end with their right output and code."""
    api = own.api
    gate = own.folder / "gate"
    script = (
        "i={i}; seq 1 $((i * 1000)); echo err$i >&2; "
        f"until [ -e {gate} ]; do sleep 0.05; done; seq 1 $((i * 100)); exit $i"
    )
    idents = {detach(api, script.format(i=i)): i for i in range(25)}
    lost = []
    for i in range(25, 50):
        sock, ident = frames(own, ["sh", "-c", script.format(i=i)])
        # Before that it need not be there for a thawd that comes later.
        assert next(shim.frames(sock))[0] == shim.STARTED
        lost.append(sock)
        idents[ident] = i
    for ident in list(idents)[:25:5]:
        assert wait_line(api, ident, regex="^err[0-9]+$")["matched"]
    own.kill9()
    for sock in lost:
        sock.close()
    gate.touch()
    own.start()
    for ident, i in idents.items():
        found = wait(api, ident)
        assert (found["exit_code"], found["lost"]) == (i, False), found
        out = "".join(f"{n}\n" for k in (1000, 100) for n in range(1, i * k + 1))
        assert log_of(api, ident, stream="stdout").decode() == out
        assert log_of(api, ident, stream="stderr").decode() == f"err{i}\n"
    # And once more: ended ones are still there.
    own.kill9()
    own.start()
    for ident, i in idents.items():
        assert get(api, f"/execs/{ident}")["exit_code"] == i


def test_a_client_comes_back_at_its_cursor(own: Thawd) -> None:
    """Kill after kill, while a foreground exec prints more than its ring and log hold."""
    own.stop()
    own.start("exec_log_size = 1MiB")
    sock, ident = frames(own, ["seq", "1", "2000000"])
    sha, at, kills = hashlib.sha256(), 0, 0
    while True:
        end = None
        try:
            for kind, body in all_frames(sock):
                if kind == shim.STDOUT:
                    sha.update(body)
                    at += len(body)
                elif kind == shim.ATTACHED:
                    assert struct.unpack("<Q", body[:8])[0] == at
                elif kind in (shim.EXIT, shim.ERROR):
                    end = (kind, body)
                if kills < 4 and at > (kills + 1) * 2 * MIB:
                    break
        except (ConnectionError, shim.Lost):
            pass
        if end:
            break
        own.kill9()
        sock.close()
        kills += 1
        own.start()
        sock = attach(own, ident, at)
    assert end[0] == shim.EXIT
    assert kills == 4
    whole = "".join(f"{i}\n" for i in range(1, 2000001)).encode()
    assert (at, sha.hexdigest()) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_restart_keeps_terminals_stdin_and_time_outs(own: Thawd) -> None:
    ws, pty = terminal(own, ["sh", "-c", "echo up; read x; echo got $x; exit 4"])
    ws.until(b"up\r\n")
    reader = detach(own.api, "read x; echo $x; exit 5", stdin_open=True)
    timed = detach(own.api, "echo before; sleep 1600", timeout_ms=3000)
    own.restart()
    again = WebSocket(own.socket, f"{A}/execs/{pty}/attach?cursor=0")
    assert again.receive()["type"] == "ready"
    again.write(b"it\n")
    out, end = again.rest()
    assert out.startswith(b"up\r\n")
    assert out.endswith(b"got it\r\n")
    assert end["exit_code"] == 4
    assert own.api.call("PUT", f"{A}/execs/{reader}/stdin", body=b"on\n").status == 204
    assert wait(own.api, reader)["exit_code"] == 5
    assert log_of(own.api, reader) == b"on\n"
    found = wait(own.api, timed)
    assert (found["timed_out"], found["exit_code"]) == (True, 124)
    assert log_of(own.api, timed) == b"before\n"


def test_the_end_of_a_machine_ends_waits(own: Thawd) -> None:
    ident = detach(own.api, "echo last words; sleep 1700")
    assert wait_line(own.api, ident, text="words")["matched"]
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(own.api.call, "POST", f"{A}/exec", {"argv": words(["sleep", "1701"])}),
            pool.submit(own.api.call, "GET", f"{A}/execs/{ident}/wait?timeout_ms=60000"),
        ]
        assert eventually(lambda: processes("sleep\x001701"))
        assert own.api.call("POST", f"{A}/destroy", {}).status == 200
        assert answers[0].result().code == "guest_lost"
        assert answers[1].result().json["lost"]
    answer = own.api.call("POST", f"{A}/exec", {"argv": ["true"]})
    assert (answer.status, answer.code) == (409, "wrong_state")
    # What it left can be read, by this thawd and the next.
    for _ in range(2):
        assert get(own.api, f"/execs/{ident}")["lost"]
        assert log_of(own.api, ident) == b"last words\n"
        assert ident in [e["id"] for e in get(own.api, "/execs")["execs"]]
        own.restart()


# --- what is told ---


def test_events_metrics_and_audit_have_no_secret(own: Thawd, tmp_path: Path) -> None:
    own.stop()
    log = tmp_path / "audit"
    own.start(f"audit_log = {log}")
    run(own.api, ["sh", "-c", "true", "s3cret"], env={"T": "s3cret"}, stdin="s3cret")
    run(own.api, ["/no/such"], status=422)
    sh(own.api, "sleep 100", timeout_ms=50)
    with own.api.stream("GET", "/v1/events?since=0", headers=SSE) as stream:
        seen = []
        for event in stream.events():
            seen.append(event.name)
            if seen.count("exec.ended") >= 3:
                break
    assert seen.count("exec.started") >= 3
    text = own.api.call("GET", "/metrics").body.decode()
    assert re.search(r"^thaw\S*exec\S* 3$", text, re.M), text
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first = next(line for line in lines if line["action"] == "exec")
    assert (first["details"]["argv0"], first["details"]["argc"]) == ("sh", 4)
    assert "s3cret" not in log.read_text() + text
