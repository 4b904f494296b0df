# SPDX-License-Identifier: Apache-2.0
"""Terminals in a sandbox, over a WebSocket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import _errors, _observe, _values, _ws
from .._errors import ConnectionLost, ProtocolError, Timeout
from .._models import CommandResult, Json
from ._conn import AsyncResponse, parse_json
from ._io import call, monotonic

if TYPE_CHECKING:
    from ._client import AsyncClient

START_TIMEOUT = 60.0  # seconds


class AsyncPty:
    """sandbox.pty: terminals."""

    def __init__(self, client: AsyncClient, path: str) -> None:
        self._client = client
        self._path = path

    async def create(
        self,
        cmd: Sequence[str] = ("/bin/sh", "-i"),
        *,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        on_data: Callable[[bytes], object] | None = None,
    ) -> AsyncPtyHandle:
        """Run a command with a terminal. cols, rows: its size, 1 to 65535. The rest is as in
        commands.run(); TERM is set to "xterm-256color" unless env has it. on_data: called with
        bytes as they come, while one waits or iterates.

        The command lives on when the connection is lost or disconnect() is called; connect() finds
        it by its id. Raises SpawnError, WrongState, NotFound.
        """
        body = _values.exec_body(
            _values.argv_of(cmd),
            {"TERM": "xterm-256color", **(env or {})},
            cwd,
            user,
            timeout,
            None,
            False,
            pty={"cols": cols, "rows": rows},
        )
        response = await self._open(f"{self._path}/exec")
        return await self._begin(response, json.dumps(body), on_data)

    async def connect(
        self,
        ident: str,
        *,
        cursor: int | None = None,
        on_data: Callable[[bytes], object] | None = None,
    ) -> AsyncPtyHandle:
        """A terminal that runs, by its id, with its output from CURSOR on (default: the last
        256 KiB). Whoever had it loses it. Raises NotFound."""
        target = f"{self._path}/execs/{_values.quote(ident)}/attach"
        response = await self._open(target + _values.query(cursor=cursor))
        return await self._begin(response, None, on_data)

    async def _open(self, target: str) -> AsyncResponse:
        key = _ws.new_key()
        headers = [("Sec-WebSocket-Key", key), ("Sec-WebSocket-Version", "13")]
        response = await self._client.stream("GET", target, upgrade="websocket", headers=headers)
        if response.headers.get("sec-websocket-accept") != _ws.accept_of(key):
            await response.aclose()
            raise ProtocolError("thawd's answer is not that of a WebSocket")
        return response

    async def _begin(
        self,
        response: AsyncResponse,
        first: str | None,
        on_data: Callable[[bytes], object] | None,
    ) -> AsyncPtyHandle:
        handle = AsyncPtyHandle(response, on_data)
        try:
            if first is not None:
                await handle._send(_ws.TEXT, first.encode())
            await handle._wait_ready()
        except BaseException:
            await response.aclose()
            raise
        return handle


class AsyncPtyHandle:
    """A terminal. id: of its command, for connect(); pid: in the sandbox; cursor: how much output
    has come, in bytes from the command's start.

    Output comes by iterating, by read(), or by on_data during wait(). Usable in a with statement,
    which disconnects at its end.
    """

    def __init__(self, response: AsyncResponse, on_data: Callable[[bytes], object] | None) -> None:
        self._response = response
        self._stream = response.connection.stream
        self._reader = _ws.MessageReader()
        self._early = response.upgraded()
        self._messages: list[_ws.Message] = []
        self._on_data = on_data
        self._kept = b""  # output behind what read_until() gave
        self._result: CommandResult | None = None
        self.id = response.headers.get("x-thaw-exec", "")
        self.pid: int | None = None
        self.cursor = 0

    async def __aenter__(self) -> AsyncPtyHandle:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def _send(self, opcode: int, payload: bytes) -> None:
        if self._result is not None:
            raise ConnectionLost("the command has ended")
        await self._stream.send(_ws.encode(opcode, payload))

    async def _next(self, timeout: float | None) -> _ws.Message:
        """The next message but for pings."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            while self._messages:
                message = self._messages.pop(0)
                if message.opcode == _ws.PING:
                    await self._stream.send(_ws.encode(_ws.PONG, message.data))
                elif message.opcode == _ws.CLOSE:
                    raise ConnectionLost(f"thawd closed the terminal ({message.close_code})")
                elif message.opcode != _ws.PONG:
                    return message
            data, self._early = self._early, b""
            if not data:
                left = None if end is None else end - monotonic()
                data = await self._stream.receive(left)
            if not data:
                raise ConnectionLost("the connection to the terminal broke off")
            self._messages = self._reader.feed(data)

    async def _wait_ready(self) -> None:
        while True:
            message = await self._next(START_TIMEOUT)
            if message.opcode != _ws.TEXT:
                raise ProtocolError("output before the terminal was ready")
            value = self._text(message)
            if value.get("type") == "ready":
                self.id, self.pid = value["id"], value["pid"]
                self.cursor = value.get("cursor", 0)
                return

    def _text(self, message: _ws.Message) -> Json:
        """A text message; raises what an error says."""
        _observe.text(message.data.decode("utf-8", "replace"))
        value = parse_json(message.data)
        if not isinstance(value, dict):
            raise ProtocolError("bad message of the terminal")
        if value.get("type") == "error":
            raise _errors.from_body(0, value)
        return value

    async def read(self, timeout: float | None = None) -> bytes:
        """The next output, b"" when the command has ended. timeout: seconds. Raises Timeout,
        ConnectionLost."""
        if self._kept:
            data, self._kept = self._kept, b""
            return data
        end = None if timeout is None else monotonic() + timeout
        while self._result is None:
            left = None if end is None else end - monotonic()
            message = await self._next(left)
            if message.opcode == _ws.BINARY:
                self.cursor += len(message.data)
                if self._on_data is not None:
                    await call(self._on_data, message.data)
                return message.data
            value = self._text(message)
            if value.get("type") == "exit":
                self._result = CommandResult(
                    id=self.id,
                    pid=self.pid,
                    exit_code=value["exit_code"],
                    signal=value["signal"],
                    timed_out=value["timed_out"],
                    oom_killed=value["oom_killed"],
                    raw_stdout=b"",
                    raw_stderr=b"",
                    drained=value["drained"],
                )
                await self._goodbye()
        return b""

    async def read_until(self, text: bytes | str, timeout: float = 30.0) -> bytes:
        """Output up to the end of TEXT; what is behind it comes next. timeout: seconds. Raises
        Timeout; ConnectionLost if the command ends before."""
        wanted = text.encode() if isinstance(text, str) else text
        end = monotonic() + timeout
        found = bytearray()
        while wanted not in found:
            data = await self.read(max(0.0, end - monotonic()))
            if not data:
                raise ConnectionLost(f"the command ended and had not printed {wanted!r}")
            found += data
        end_at = found.index(wanted) + len(wanted)
        self._kept = bytes(found[end_at:])
        return bytes(found[:end_at])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            data = await self.read()
            if not data:
                return
            yield data

    async def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait until the command ends; output meanwhile goes to on_data, or nowhere. timeout:
        seconds; then Timeout is raised and the command goes on."""
        end = None if timeout is None else monotonic() + timeout
        while self._result is None:
            left = None if end is None else end - monotonic()
            if left is not None and left < 0:
                raise Timeout("the command still runs")
            await self.read(left)
        return self._result

    async def send(self, data: bytes | str) -> None:
        """Type DATA."""
        await self._send(_ws.BINARY, data.encode() if isinstance(data, str) else bytes(data))

    async def resize(self, cols: int, rows: int) -> None:
        """Set the terminal's size."""
        await self._send_json({"type": "resize", "cols": cols, "rows": rows})

    async def send_signal(self, signal: int | str) -> None:
        """To the command itself. signal: a number, or a name such as "SIGTERM"."""
        await self._send_json({"type": "signal", "signal": _values.signal_value(signal)})

    async def kill(self) -> None:
        """SIGKILL for the command itself; wait() tells its end."""
        await self.send_signal(9)

    async def send_eof(self) -> None:
        """Type the terminal's end-of-file character."""
        await self._send_json({"type": "eof"})

    async def _send_json(self, value: Json) -> None:
        await self._send(_ws.TEXT, json.dumps(value).encode())

    async def _goodbye(self) -> None:
        with contextlib.suppress(ConnectionLost):
            await self._stream.send_soon(_ws.encode(_ws.CLOSE, _ws.close_payload(1000)))
        await self._response.aclose()

    async def disconnect(self) -> None:
        """Leave it: the command goes on, connect() finds it."""
        if self._result is None:
            await self._goodbye()
