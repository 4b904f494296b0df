# SPDX-License-Identifier: Apache-2.0
"""The Python client against servers that follow a script: broken connections, odd answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "clients/python/src"))
import thaw  # noqa: E402
from thaw import _errors, _frames, _http, _sse, _ws  # noqa: E402

EXEC_ID = "0123456789abcdef0123456789abcdef"


class Peer:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""

    def more(self) -> None:
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError
        self.data += piece

    def take(self, size: int) -> bytes:
        while len(self.data) < size:
            self.more()
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def head(self) -> tuple[str, dict[str, str]]:
        """Request line and headers (names in lower case)."""
        while b"\r\n\r\n" not in self.data:
            self.more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        line, *rest = head.decode().split("\r\n")
        return line, {k.lower(): v.strip() for k, _, v in (each.partition(":") for each in rest)}

    def request(self) -> tuple[str, bytes]:
        """Request line and body."""
        line, headers = self.head()
        return line, self.take(int(headers.get("content-length", 0)))

    def frame(self) -> tuple[int, bytes]:
        size, kind, _, _ = struct.unpack("<IBBH", self.take(8))
        return kind, self.take(size)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, status: int, value: object = None, *lines: str) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *lines]
        if body:
            head.append("Content-Type: application/json")
        self.send(("\r\n".join(head) + "\r\n\r\n").encode() + body)

    def switch(self, protocol: str, *lines: str) -> None:
        head = ["HTTP/1.1 101 X", "Connection: Upgrade", f"Upgrade: {protocol}", *lines]
        self.send(("\r\n".join(head) + "\r\n\r\n").encode())

    def close(self) -> None:
        self.sock.close()


Script = Callable[[Peer], None]


class Server:
    """Serves one connection after the other, each by its script."""

    def __init__(self, path: str, *scripts: Script) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        self.scripts = list(scripts)
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        for script in self.scripts:
            sock, _ = self.listener.accept()
            sock.settimeout(60)
            try:
                script(Peer(sock))
            except BaseException as error:
                self.errors.append(error)
            sock.close()
        self.listener.close()

    def done(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert not self.errors, self.errors


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    old = Path.cwd()
    os.chdir(tmp_path)  # paths of sockets are short
    yield "s"
    os.chdir(old)


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


def run(flavour: str, coroutine: Any) -> Any:  # noqa: ANN401
    return asyncio.run(coroutine) if flavour == "async" else coroutine


INFO = {
    "name": "a", "id": None, "state": "running", "template": "t", "snapshot": None, "parent": None,
    "size": {"name": "lite", "vcpus": 1, "memory_bytes": 1, "scratch_bytes": 1}, "env": {},
    "entrypoint": None, "internet": False, "labels": {}, "inactivity_timeout_ms": 1,
    "hard_timeout_ms": None, "keep_alive": False, "auto_remove": False, "pids_max": None,
    "nofile": None, "hostname": "a", "created": "2026-11-29T12:00:00.123456789Z", "started": None,
    "last_activity": None, "expires": None, "entrypoint_exec": None, "start": None, "stop": None,
}  # fmt: skip


def in_sandbox(
    flavour: str, path: str, sync: Callable[[Any], Any], asynchronous: Callable[[Any], Any]
) -> Any:  # noqa: ANN401
    """What the flavour's function returns for sandbox a, without asking the server for it."""
    info = thaw.SandboxInfo._from(INFO)
    if flavour == "sync":
        with thaw.Client(socket=path, timeout=20) as client:
            return sync(thaw.Sandbox(client, info, made=False, own_client=False))

    async def main() -> Any:  # noqa: ANN401
        async with thaw.AsyncClient(socket=path, timeout=20) as client:
            sandbox = thaw.AsyncSandbox(client, info, made=False, own_client=False)
            return await asynchronous(sandbox)

    return asyncio.run(main())


def run_command(flavour: str, path: str, **options: Any) -> thaw.CommandResult:  # noqa: ANN401
    return in_sandbox(
        flavour,
        path,
        lambda sandbox: sandbox.commands.run(["x"], **options),
        lambda sandbox: sandbox.commands.run(["x"], **options),
    )


def exit_frame(code: int = 0, kind: int = 0, flags: int = 1) -> bytes:
    return _frames.frame(_frames.EXIT, struct.pack("<III", kind, code, flags))


def out(data: bytes, kind: int = _frames.STDOUT) -> bytes:
    return _frames.frame(kind, data)


def attached(offset: int) -> bytes:
    return _frames.frame(_frames.ATTACHED, struct.pack("<QQII", offset, 100, 7, 0))


STARTED = _frames.frame(_frames.STARTED, struct.pack("<I", 7))


def begin(peer: Peer) -> bytes:
    """An exec begins; its first frame's payload."""
    line, headers = peer.head()
    assert line == "POST /v1/sandboxes/a/exec HTTP/1.1"
    assert headers["upgrade"] == "thaw-exec/1"
    peer.switch("thaw-exec/1", f"X-Thaw-Exec: {EXEC_ID}")
    kind, payload = peer.frame()
    assert kind == _frames.EXEC
    return payload


# --- commands ---


def test_a_command(flavour: str, path: str) -> None:
    def script(peer: Peer) -> None:
        payload = begin(peer)
        assert payload.endswith(b"x\0A=b\0/tmp\0")
        # A character in two pieces, and pieces that split frames.
        data = (
            STARTED + out(b"gr\xc3") + out(b"e", _frames.STDERR) + out(b"\xbc\xff") + exit_frame(3)
        )
        for at in range(0, len(data), 5):
            peer.send(data[at : at + 5])

    texts: list[str] = []
    pieces: list[thaw.Output] = []
    server = Server(path, script)
    result = run_command(
        flavour, path, env={"A": "b"}, cwd="/tmp", on_stdout=texts.append, on_output=pieces.append
    )
    server.done()
    assert (result.exit_code, result.raw_stdout, result.stderr) == (3, b"gr\xc3\xbc\xff", "e")
    assert (result.id, result.pid, result.signal, result.drained) == (EXEC_ID, 7, None, True)
    assert "".join(texts) == "gr\u00fc\ufffd"
    assert [piece.cursor for piece in pieces] == [0, 3, 4]
    with pytest.raises(thaw.CommandExit, match="ended with 3: e"):
        thaw._sync._commands.check_result(result, ["x"], True)


def test_a_command_that_dies_or_takes_too_long(flavour: str, path: str) -> None:
    server = Server(
        path,
        lambda peer: (begin(peer), peer.send(STARTED + exit_frame(9, 1))),
        lambda peer: (begin(peer), peer.send(STARTED + exit_frame(9, 1, 3))),
    )
    died = run_command(flavour, path)
    assert (died.exit_code, died.signal, died.timed_out) == (137, "SIGKILL", False)
    with pytest.raises(thaw.CommandTimeout) as caught:
        run_command(flavour, path, timeout=1.0, check=True)
    assert (caught.value.result.exit_code, caught.value.result.timed_out) == (124, True)
    assert isinstance(caught.value, thaw.Timeout)
    server.done()


def test_a_command_that_cannot_start(flavour: str, path: str) -> None:
    def script(peer: Peer) -> None:
        begin(peer)
        peer.send(_frames.frame(_frames.ERROR, struct.pack("<II", 3, 2) + b"no such"))

    server = Server(path, script)
    with pytest.raises(thaw.SpawnError, match="no such") as caught:
        run_command(flavour, path)
    server.done()
    assert (caught.value.stage, caught.value.errno) == ("exec", "ENOENT")


def test_a_lost_connection_is_taken_up_where_it_broke_off(flavour: str, path: str) -> None:
    def first(peer: Peer) -> None:
        begin(peer)
        peer.send(STARTED + out(b"12345") + out(b"67890")[:-3])  # the second one is cut

    def second(peer: Peer) -> None:
        line, _ = peer.head()
        assert line == f"GET /v1/sandboxes/a/execs/{EXEC_ID}/attach?cursor=5 HTTP/1.1"
        peer.switch("thaw-exec/1")
        peer.send(attached(5) + out(b"67890"))

    def third(peer: Peer) -> None:
        line, _ = peer.head()
        assert "cursor=10 " in line
        peer.answer(500, {"error": {"code": "internal", "message": "not yet", "details": {}}})

    def fourth(peer: Peer) -> None:
        assert "cursor=10 " in peer.head()[0]
        peer.switch("thaw-exec/1")
        peer.send(attached(12) + out(b"c") + exit_frame(0))

    server = Server(path, first, second, third, fourth)
    result = run_command(flavour, path)
    server.done()
    assert (result.stdout, result.dropped_bytes, result.exit_code) == ("1234567890c", 2, 0)


def test_a_lost_connection_that_stays_lost(flavour: str, path: str) -> None:
    server = Server(path, lambda peer: begin(peer))
    info = thaw.SandboxInfo._from(INFO)
    with pytest.raises(thaw.ConnectionLost):
        if flavour == "sync":
            with thaw.Client(socket=path, reconnect_timeout=0.2) as client:
                thaw.Sandbox(client, info, made=False, own_client=False).commands.run(["x"])
        else:

            async def main() -> None:
                async with thaw.AsyncClient(socket=path, reconnect_timeout=0.2) as client:
                    sandbox = thaw.AsyncSandbox(client, info, made=False, own_client=False)
                    await sandbox.commands.run(["x"])

            asyncio.run(main())
    server.done()


def test_input_that_may_be_lost_is_not_sent_twice(flavour: str, path: str) -> None:
    def script(peer: Peer) -> None:
        begin(peer)
        assert peer.frame() == (_frames.STDIN, b"input")

    server = Server(path, script)
    with pytest.raises(thaw.ConnectionLost, match="how much of its stdin"):
        run_command(flavour, path, stdin=b"input")
    server.done()


def test_input_in_windows(flavour: str, path: str) -> None:
    """Never more than the window under way; output meanwhile is read; the end is told."""
    total = 3 * _frames.STDIN_WINDOW_BYTES + 5
    seen = bytearray()

    def script(peer: Peer) -> None:
        begin(peer)
        peer.send(STARTED)
        under_way = 0
        while True:
            kind, payload = peer.frame()
            if kind == _frames.STDIN_EOF:
                break
            assert kind == _frames.STDIN
            assert 0 < len(payload) <= _frames.DATA_MAX_BYTES
            seen.extend(payload)
            under_way += len(payload)
            assert under_way <= _frames.STDIN_WINDOW_BYTES
            if under_way == _frames.STDIN_WINDOW_BYTES:
                # More than a socket's buffer holds, before the credit.
                for _ in range(16):
                    peer.send(out(bytes(65536)))
                peer.send(_frames.frame(_frames.STDIN_CREDIT, struct.pack("<I", under_way)))
                under_way = 0
        peer.send(exit_frame())

    data = os.urandom(total)

    def pieces() -> Iterator[bytes]:
        for at in range(0, total, 100_000):
            yield data[at : at + 100_000]

    server = Server(path, script)
    result = run_command(flavour, path, stdin=pieces())
    server.done()
    assert bytes(seen) == data
    assert result.exit_code == 0
    assert len(result.raw_stdout) == 3 * 16 * 65536


def test_output_beyond_the_limit_is_dropped(flavour: str, path: str) -> None:
    server = Server(path, lambda peer: (begin(peer), peer.send(out(b"abcdef") + exit_frame())))
    got: list[str] = []
    result = run_command(flavour, path, max_output_bytes=4, on_stdout=got.append)
    server.done()
    assert (result.stdout, result.truncated, got) == ("abcd", True, ["abcdef"])


def test_a_callback_that_fails_ends_the_command(flavour: str, path: str) -> None:
    hung_up = threading.Event()

    def script(peer: Peer) -> None:
        begin(peer)
        peer.send(STARTED + out(b"x"))
        with pytest.raises((EOFError, ConnectionError)):
            peer.frame()
        hung_up.set()

    def fail(text: str) -> None:
        raise KeyError(text)

    server = Server(path, script)
    with pytest.raises(KeyError):
        run_command(flavour, path, on_stdout=fail)
    server.done()
    assert hung_up.is_set()


def test_a_cancelled_command_is_left() -> None:
    hung_up = threading.Event()
    running = threading.Event()

    def script(peer: Peer) -> None:
        begin(peer)
        peer.send(STARTED)
        running.set()
        with pytest.raises((EOFError, ConnectionError)):
            peer.frame()
        hung_up.set()

    async def main() -> None:
        async with thaw.AsyncClient(socket="s") as client:
            info = thaw.SandboxInfo._from(INFO)
            sandbox = thaw.AsyncSandbox(client, info, made=False, own_client=False)
            task = asyncio.ensure_future(sandbox.commands.run(["x"]))
            while not running.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    folder = Path.cwd()
    with tempfile.TemporaryDirectory() as short:
        os.chdir(short)
        try:
            server = Server("s", script)
            asyncio.run(main())
            server.done()
        finally:
            os.chdir(folder)
    assert hung_up.is_set()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"cmd": "ls -l"}, TypeError),
        ({"cmd": []}, ValueError),
        ({"cmd": ["a\0b"]}, ValueError),
        ({"cmd": ["a", 1]}, TypeError),
        ({"cmd": ["a"], "env": {"A=B": "c"}}, ValueError),
        ({"cmd": ["a"], "user": "root"}, ValueError),
        ({"cmd": ["a"], "timeout": 0}, ValueError),
        ({"cmd": ["a"], "stdin_open": True}, ValueError),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_sent(
    options: dict[str, Any], wrong: type[Exception]
) -> None:
    client = thaw.Client(socket="/nowhere")
    sandbox = thaw.Sandbox(client, thaw.SandboxInfo._from(INFO), made=False, own_client=False)
    with pytest.raises(wrong):
        sandbox.commands.run(**options)


def test_a_string_is_no_command() -> None:
    client = thaw.Client(socket="/nowhere")
    sandbox = thaw.Sandbox(client, thaw.SandboxInfo._from(INFO), made=False, own_client=False)
    with pytest.raises(TypeError, match=r'\["sh", "-c", \'ls \| wc\'\]'):
        sandbox.commands.run("ls | wc")  # type: ignore[arg-type]


# --- calls ---


def get_info(flavour: str, path: str, **options: Any) -> Any:  # noqa: ANN401
    if flavour == "sync":
        with thaw.Client(socket=path, **options) as client:
            return client.info()

    async def main() -> Any:  # noqa: ANN401
        async with thaw.AsyncClient(socket=path, **options) as client:
            return await client.info()

    return asyncio.run(main())


@pytest.mark.parametrize("code", sorted(_errors._BY_CODE))
def test_every_code_has_its_exception(path: str, code: str) -> None:
    details = {"errno": "EACCES", "operation": "open", "path": "/x", "stage": "exec"}
    body = {"error": {"code": code, "message": "the text", "details": details}}
    server = Server(path, lambda peer: (peer.request(), peer.answer(503, body, "Retry-After: 7")))
    with pytest.raises(thaw.ThawError, match="the text") as caught:
        get_info("sync", path)
    server.done()
    error = caught.value
    assert type(error) is _errors._BY_CODE[code]
    assert (error.code, error.status, error.details) == (code, 503, details)
    if isinstance(error, thaw.Capacity):
        assert error.retry_after == 7.0
    if isinstance(error, thaw.FileError):
        assert (error.errno, error.operation, error.path) == ("EACCES", "open", "/x")


def test_nobody_listens(flavour: str, path: str) -> None:
    with pytest.raises(thaw.ConnectionLost, match="does thawd run there"):
        get_info(flavour, path)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
    ],
)
def test_broken_answers(flavour: str, path: str, answer: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        with contextlib.suppress(BrokenPipeError):
            peer.send(answer)

    server = Server(path, script)
    with pytest.raises(thaw.ConnectionLost):
        get_info(flavour, path)
    server.done()


def test_an_answer_that_does_not_come(flavour: str, path: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        assert peer.sock.recv(1) == b""

    server = Server(path, script)
    with pytest.raises(thaw.Timeout):
        get_info(flavour, path, timeout=0.1)
    server.done()


def test_a_connection_is_used_again_and_a_dead_one_is_not(flavour: str, path: str) -> None:
    """Two calls over one connection, which thawd then closes: the third has a new one."""

    def first(peer: Peer) -> None:
        for number in (1, 2):
            peer.request()
            peer.answer(200, {"call": number})
        peer.close()
        closed.set()

    def second(peer: Peer) -> None:
        peer.request()
        peer.answer(200, {"call": 3})

    closed = threading.Event()
    server = Server(path, first, second)
    if flavour == "sync":
        with thaw.Client(socket=path) as client:
            calls = [client.info()["call"], client.info()["call"]]
            closed.wait(60)
            calls.append(client.info()["call"])
    else:

        async def main() -> list[int]:
            async with thaw.AsyncClient(socket=path) as client:
                found = [(await client.info())["call"], (await client.info())["call"]]
                while not closed.is_set():
                    await asyncio.sleep(0.01)
                return [*found, (await client.info())["call"]]

        calls = asyncio.run(main())
    server.done()
    assert calls == [1, 2, 3]


def test_a_refused_upload_ends_with_its_reason(flavour: str, path: str) -> None:
    """thawd answers and hangs up while most of the body has not been sent."""
    details = {"errno": "EISDIR", "operation": "open", "path": "/d"}

    def script(peer: Peer) -> None:
        line, headers = peer.head()
        assert line.startswith("PUT /v1/sandboxes/a/files?path=%2Fd ")
        assert headers["transfer-encoding"] == "chunked"
        body = {"error": {"code": "file_error", "message": "open '/d'", "details": details}}
        peer.answer(409, body, "Connection: close")
        peer.sock.shutdown(socket.SHUT_WR)
        try:
            while peer.sock.recv(1 << 16):
                pass
        except OSError:
            pass

    def pieces() -> Iterator[bytes]:
        for _ in range(200):
            yield bytes(65536)

    server = Server(path, script)
    with pytest.raises(thaw.FileError) as caught:
        in_sandbox(
            flavour,
            path,
            lambda sandbox: sandbox.files.write("/d", pieces()),
            lambda sandbox: sandbox.files.write("/d", pieces()),
        )
    server.done()
    assert caught.value.errno == "EISDIR"


def test_a_download_that_breaks_off_is_an_error(flavour: str, path: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    server = Server(path, script)
    with pytest.raises(thaw.ConnectionLost):
        in_sandbox(
            flavour,
            path,
            lambda sandbox: sandbox.files.read("/f"),
            lambda sandbox: sandbox.files.read("/f"),
        )
    server.done()


def test_followed_output_goes_on_after_a_loss(flavour: str, path: str) -> None:
    def sse(*events: tuple[str, object]) -> bytes:
        text = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        return (head + ": a comment\n" + text).encode()

    def piece(data: bytes, cursor: int) -> dict[str, Any]:
        return {"data": base64.b64encode(data).decode(), "cursor": cursor}

    def info(peer: Peer) -> None:
        peer.request()
        value = {
            "id": EXEC_ID, "argv": ["x"], "pid": 7, "state": "running", "detached": True,
            "pty": False, "started": "2026-11-29T12:00:00Z", "ended": None, "exit_code": None,
            "signal": None, "timed_out": False, "output_bytes": 0, "oldest_cursor": 0,
        }  # fmt: skip
        peer.answer(202, value, "Connection: close")

    def first(peer: Peer) -> None:
        line, _ = peer.request()
        assert line == f"GET /v1/sandboxes/a/execs/{EXEC_ID}/logs?cursor=0&follow=1 HTTP/1.1"
        peer.send(sse(("stdout", piece(b"abc", 0))))

    def second(peer: Peer) -> None:
        assert "cursor=3&" in peer.request()[0]
        peer.send(sse(("ping", {}), ("stderr", piece(b"d", 3)), ("exit", {"exit_code": 0})))

    async def follow(sandbox: thaw.AsyncSandbox) -> list[Any]:
        handle = await sandbox.commands.run(["x"], background=True)
        return [(each.stream, each.data) async for each in handle.follow()]

    server = Server(path, info, first, second)
    found = in_sandbox(
        flavour,
        path,
        lambda sandbox: [
            (each.stream, each.data)
            for each in sandbox.commands.run(["x"], background=True).follow()
        ],
        follow,
    )
    server.done()
    assert found == [("stdout", b"abc"), ("stderr", b"d")]


# --- terminals ---


def ws_frame(opcode: int, payload: bytes, final: bool = True) -> bytes:
    assert len(payload) < 126
    return bytes([(0x80 if final else 0) | opcode, len(payload)]) + payload


def ws_begin(peer: Peer) -> None:
    _, headers = peer.head()
    guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    digest = hashlib.sha1((headers["sec-websocket-key"] + guid).encode()).digest()
    peer.switch("websocket", f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}")


def ws_take(peer: Peer) -> tuple[int, bytes]:
    """A message of the client, which must be masked."""
    head = peer.take(2)
    assert head[1] & 0x80
    size = head[1] & 127
    if size == 126:
        size = int.from_bytes(peer.take(2), "big")
    mask = peer.take(4)
    data = peer.take(size)
    return head[0] & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def test_a_terminal(flavour: str, path: str) -> None:
    ready = json.dumps({"type": "ready", "id": EXEC_ID, "pid": 7}).encode()
    end = {"type": "exit", "exit_code": 4, "signal": None, "timed_out": False, "oom_killed": False}
    end["drained"] = True

    def script(peer: Peer) -> None:
        ws_begin(peer)
        opcode, data = ws_take(peer)
        assert opcode == 1
        assert json.loads(data)["pty"] == {"cols": 100, "rows": 30}
        # In fragments, with a ping between them.
        peer.send(ws_frame(1, ready[:9], False) + ws_frame(9, b"hi") + ws_frame(0, ready[9:]))
        assert ws_take(peer) == (10, b"hi")
        assert ws_take(peer) == (2, b"echo 1\n" * 40)
        assert ws_take(peer) == (1, b'{"type": "resize", "cols": 120, "rows": 40}')
        peer.send(ws_frame(2, b"1\r\n") + ws_frame(1, json.dumps(end).encode()[:60], False))
        peer.send(ws_frame(0, json.dumps(end).encode()[60:]))
        assert ws_take(peer)[0] == 8

    got: list[bytes] = []

    async def use(sandbox: thaw.AsyncSandbox) -> tuple[Any, ...]:
        term = await sandbox.pty.create(cols=100, rows=30, on_data=got.append)
        await term.send("echo 1\n" * 40)
        await term.resize(120, 40)
        return term.id, term.pid, await term.wait(60), term.cursor

    def use_sync(sandbox: thaw.Sandbox) -> tuple[Any, ...]:
        term = sandbox.pty.create(cols=100, rows=30, on_data=got.append)
        term.send("echo 1\n" * 40)
        term.resize(120, 40)
        return term.id, term.pid, term.wait(60), term.cursor

    server = Server(path, script)
    ident, pid, result, cursor = in_sandbox(flavour, path, use_sync, use)
    server.done()
    assert (ident, pid, result.exit_code, cursor, got) == (EXEC_ID, 7, 4, 3, [b"1\r\n"])


@pytest.mark.parametrize(
    "bad",
    [
        b"\xc1\x00",  # a reserved bit
        b"\x81\x80aaaa",  # masked
        b"\x89\x7e\x00\xff",  # a long ping
        b"\x80\x00",  # continues nothing
        b"\x83\x00",  # no such opcode
        b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",  # endless
    ],
)
def test_bad_websocket_frames(bad: bytes) -> None:
    with pytest.raises(thaw.ProtocolError):
        _ws.MessageReader().feed(bad)


def test_a_websocket_that_is_none(path: str) -> None:
    server = Server(
        path,
        lambda peer: (peer.head(), peer.switch("websocket", "Sec-WebSocket-Accept: x")),
    )
    with pytest.raises(thaw.ProtocolError):
        in_sandbox("sync", path, lambda sandbox: sandbox.pty.create(), lambda sandbox: None)
    server.done()


# --- bytes ---


def test_masking() -> None:
    for size in (0, 1, 125, 126, 65535, 65536):
        data = os.urandom(size)
        message = _ws.encode(2, data)
        at = 2 + (0 if size < 126 else 2 if size < 65536 else 8)
        key, masked = message[at : at + 4], message[at + 4 :]
        assert bytes(b ^ key[i % 4] for i, b in enumerate(masked)) == data


def test_chunks_in_pieces() -> None:
    data = b"4\r\nabcd\r\nA;x=y\r\n0123456789\r\n0\r\nT: r\r\n\r\nrest"
    for step in (1, 2, 3, 7, 100):
        body = _http.BodyReader("GET", _http.Head(200, "", {"transfer-encoding": "chunked"}))
        found = b"".join(body.feed(data[at : at + step]) for at in range(0, len(data), step))
        assert (found, body.done, body.rest) == (b"abcd0123456789", True, b"rest")


def test_events_in_pieces() -> None:
    data = b": c\r\nevent: a\r\ndata: 1\ndata: 2\nid: 9\n\n\ndata:3\n\nevent: none\n\n"
    for step in (1, 2, 5, 100):
        reader = _sse.EventReader()
        found = []
        for at in range(0, len(data), step):
            found += reader.feed(data[at : at + step])
        assert [(e.name, e.data, e.id) for e in found] == [
            ("a", "1\n2", "9"),
            ("message", "3", "9"),
        ]


def test_bad_frames() -> None:
    for bad in (struct.pack("<IBBH", 1, 65, 2, 0), struct.pack("<IBBH", 1 << 20, 65, 1, 0)):
        with pytest.raises(thaw.ProtocolError):
            _frames.FrameReader().feed(bad)


def test_headers_cannot_be_smuggled_in() -> None:
    for bad in ("x\r\ny: z", "x\ny", "x\0"):
        with pytest.raises(ValueError, match="control character"):
            _http.request_head("GET", "/", [("A", bad)])
    with pytest.raises(ValueError, match="empty"):
        thaw.Sandbox.connect("")


def test_where_thawd_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("THAW_SOCKET", "THAW_API_URL", "THAW_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert str(thaw.Client().endpoint) == "/run/thaw/thaw.sock"
    monkeypatch.setenv("THAW_SOCKET", "/x")
    assert str(thaw.Client().endpoint) == "/x"
    monkeypatch.setenv("THAW_API_URL", "https://h:8443")
    monkeypatch.setenv("THAW_API_TOKEN", "t")
    endpoint = thaw.Client().endpoint
    assert (str(endpoint), endpoint.token) == ("https://h:8443", "t")
    assert endpoint.tls is not None
    assert str(thaw.Client(socket="/y").endpoint) == "/y"
    assert thaw.Client(socket="/y").endpoint.token is None
    for bad in ("h:1", "ftp://h", "http://h/path", "http://u@h"):
        with pytest.raises(ValueError, match="expected"):
            thaw.Client(url=bad)


# --- the package ---


def test_the_blocking_client_is_made_of_the_other() -> None:
    subprocess.run([sys.executable, TOP / "clients/python/unasync", "--check"], check=True)


def test_it_needs_the_standard_library_only() -> None:
    """In a Python that looks nowhere else."""
    code = "import thaw; assert sorted(thaw.__all__) == thaw.__all__; print(thaw.__version__)"
    env = {"PYTHONPATH": str(TOP / "clients/python/src"), "PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=env)


def test_its_version_is_that_of_the_project() -> None:
    lines = (TOP / "CHANGELOG.md").read_text().splitlines()
    version = next(line for line in lines if line.startswith("## ")).strip("# ")
    assert thaw.__version__ == version
    assert f'version = "{version}"' in (TOP / "clients/python/pyproject.toml").read_text()
