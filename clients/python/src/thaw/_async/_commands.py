# SPDX-License-Identifier: Apache-2.0
"""Commands in a sandbox.

A command that run() waits for goes over a connection of its own, in frames (docs/exec-protocol.md).
When that breaks off, because thawd is restarted, run() attaches again where its output stopped.
"""

from __future__ import annotations

import base64
import codecs
import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import _errors, _frames, _values
from .._errors import (
    CommandExit,
    CommandTimeout,
    ConnectionLost,
    NotFound,
    ProtocolError,
    SpawnError,
    Timeout,
)
from .._models import CommandResult, ExecInfo, Json, LogMatch, Logs, Output
from ._conn import AsyncResponse, parse_json
from ._io import Feeder, Source, call, monotonic, sleep

if TYPE_CHECKING:
    from ._client import AsyncClient

MAX_OUTPUT_BYTES = 16 << 20
# thawd ends a command whose time is over; this is for one that does not.
TIMEOUT_MARGIN = 20.0  # seconds
WAIT_STEP = 60.0  # seconds of one wait call
FOLLOW_SILENCE = 45.0  # seconds; something comes every 15
FOLLOW_PAUSE = 0.05  # seconds, before a stream that broke off is asked for again

ExecInfos = list[ExecInfo]
OnText = Callable[[str], object]
OnOutput = Callable[[Output], object]


class _Collector:
    """Output as it comes: kept up to a limit, and handed to the callbacks."""

    def __init__(
        self,
        max_bytes: int,
        on_stdout: OnText | None,
        on_stderr: OnText | None,
        on_output: OnOutput | None,
    ) -> None:
        self.cursor = 0
        self.dropped_bytes = 0
        self.truncated = False
        self._max_bytes = max_bytes
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._texts = {"stdout": on_stdout, "stderr": on_stderr}
        self._on_output = on_output
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._kept
        }

    async def add(self, stream: str, data: bytes) -> None:
        piece = Output(stream, data, self.cursor)
        self.cursor += len(data)
        kept = self._kept[stream]
        room = self._max_bytes - len(kept)
        self.truncated |= len(data) > room
        kept += data[: max(0, room)]
        if self._on_output is not None:
            await call(self._on_output, piece)
        await self._text(stream, data, False)

    async def _text(self, stream: str, data: bytes, final: bool) -> None:
        """Characters are never split between two calls."""
        function = self._texts[stream]
        if function is not None:
            text = self._decoders[stream].decode(data, final)
            if text:
                await call(function, text)

    def goes_on_at(self, offset: int) -> None:
        """Output before OFFSET that did not come is lost."""
        if offset > self.cursor:
            self.dropped_bytes += offset - self.cursor
            self.cursor = offset

    async def finish(self) -> None:
        for stream in self._kept:
            await self._text(stream, b"", True)

    def result(self, ident: str, pid: int | None, value: Json) -> CommandResult:
        return CommandResult(
            id=ident,
            pid=pid,
            exit_code=value["exit_code"],
            signal=value["signal"],
            timed_out=value["timed_out"],
            oom_killed=value["oom_killed"],
            raw_stdout=bytes(self._kept["stdout"]),
            raw_stderr=bytes(self._kept["stderr"]),
            truncated=self.truncated,
            dropped_bytes=self.dropped_bytes,
            drained=value.get("drained", True),
        )


class _Run:
    """A command over its connection."""

    def __init__(
        self,
        client: AsyncClient,
        path: str,
        collector: _Collector,
        feeder: Feeder | None,
        deadline: float | None,
    ) -> None:
        self._client = client
        self._path = path
        self._out = collector
        self._feeder = feeder
        self._deadline = deadline
        self._ident = ""
        self._pid: int | None = None
        self._credit = _frames.STDIN_WINDOW_BYTES
        self._stdin_open = feeder is not None
        self._response: AsyncResponse | None = None

    async def run(self, first: bytes) -> CommandResult:
        try:
            self._response = await self._client.stream(
                "POST", f"{self._path}/exec", upgrade="thaw-exec/1"
            )
            self._ident = self._response.headers.get("x-thaw-exec", "")
            try:
                await self._response.connection.stream.send_soon(first)
                return await self._talk()
            except ConnectionLost as error:
                return await self._again(error)
        finally:
            if self._response is not None:
                await self._response.aclose()
            if self._feeder is not None:
                await self._feeder.aclose()

    async def _again(self, lost: ConnectionLost) -> CommandResult:
        """Attach where the output stopped, until it ends or thawd stays away."""
        while True:
            if isinstance(lost, ProtocolError) or not self._ident:
                raise lost
            if self._stdin_open or self._credit < _frames.STDIN_WINDOW_BYTES:
                raise ConnectionLost(
                    f"{lost}; it is not known how much of its stdin the command got"
                ) from lost
            if self._response is not None:
                await self._response.aclose()
                self._response = None
            target = f"{self._path}/execs/{self._ident}/attach?cursor={self._out.cursor}"
            try:
                self._response = await self._client.reopen(target, upgrade="thaw-exec/1")
            except NotFound:
                raise ConnectionLost(f"{lost}; thawd does not know the command any more") from lost
            try:
                return await self._talk()
            except ConnectionLost as error:
                lost = error

    async def _talk(self) -> CommandResult:
        assert self._response is not None
        reader = _frames.FrameReader()
        data: bytes | None = self._response.upgraded() or None
        while True:
            if data is None:
                data = await self._exchange()
                if data == b"":
                    raise ConnectionLost("the connection to thawd broke off during the command")
            for kind, payload in reader.feed(data or b""):
                result = await self._frame(kind, payload)
                if result is not None:
                    return result
            data = None

    async def _exchange(self) -> bytes | None:
        """Send stdin, as far as the command takes it; what came meanwhile, or the next that
        comes."""
        assert self._response is not None
        stream = self._response.connection.stream
        left = None if self._deadline is None else self._deadline - monotonic()
        if self._feeder is None or not self._stdin_open or self._credit <= 0:
            return await stream.receive(left)
        piece = await self._feeder.take(min(self._credit, _frames.DATA_MAX_BYTES))
        if piece is None:
            return await stream.receive_or(self._feeder, left)
        if piece:
            self._credit -= len(piece)
            await stream.send_soon(_frames.frame(_frames.STDIN, piece))
        elif self._feeder.done:
            self._stdin_open = False
            await stream.send_soon(_frames.frame(_frames.STDIN_EOF))
        return await stream.receive_now()

    async def _frame(self, kind: int, payload: bytes) -> CommandResult | None:
        if kind == _frames.STDOUT:
            await self._out.add("stdout", payload)
        elif kind == _frames.STDERR:
            await self._out.add("stderr", payload)
        elif kind == _frames.STDIN_CREDIT:
            self._credit += _frames.parse_u32(payload)
        elif kind == _frames.STARTED:
            self._pid = _frames.parse_u32(payload)
        elif kind == _frames.ATTACHED:
            offset, pid = _frames.parse_attached(payload)
            self._pid = pid or self._pid
            self._out.goes_on_at(offset)
        elif kind == _frames.ERROR:
            raise spawn_error(*_frames.parse_error(payload))
        elif kind == _frames.EXIT:
            status = _frames.parse_exit(payload)
            await self._out.finish()
            value = {**status.__dict__, "signal": _values.signal_name(status.signal)}
            return self._out.result(self._ident, self._pid, value)
        else:
            raise ProtocolError(f"unexpected frame {kind}")
        return None


def spawn_error(stage: str, number: int, text: str) -> _errors.ThawError:
    """Of an error frame."""
    name = errno.errorcode.get(number, str(number))
    if stage == "request":
        return _errors.InvalidRequest(text or name, "invalid_request", 0, {"errno": name})
    details = {"stage": stage, "errno": name}
    return SpawnError(text or name, "spawn_failed", 0, details)


def check_result(result: CommandResult, argv: Sequence[str], check: bool) -> CommandResult:
    if not check or result.ok:
        return result
    what = f"command {argv[0]!r}"
    tail = result.stderr.strip()[-500:]
    tail = f": {tail}" if tail else ""
    if result.timed_out:
        raise CommandTimeout(f"{what} was killed because its time was over{tail}", result)
    how = f"died of {result.signal}" if result.signal else f"ended with {result.exit_code}"
    raise CommandExit(f"{what} {how}{tail}", result)


class AsyncCommands:
    """sandbox.commands: run commands, find those that run."""

    def __init__(self, client: AsyncClient, path: str) -> None:
        self._client = client
        self._path = path

    @overload
    async def run(
        self,
        cmd: Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: Source | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_output: OnOutput | None = None,
        combined: bool = False,
        check: bool = False,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        stdin_open: bool = False,
        combined: bool = False,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: Any = None,
        stdin_open: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_output: OnOutput | None = None,
        combined: bool = False,
        check: bool = False,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult | AsyncCommandHandle:
        """Run a command; its result, or with background=True a handle as soon as it has started.

        cmd: program and arguments, ["ls", "-l"]. A str is a TypeError: nothing is given to a shell
            that is not asked for one, by ["sh", "-c", "..."].
        cwd: absolute folder (default /). env: its environment, beside PATH, which has a default.
        user: "UID:GID", numbers (default "0:0").
        timeout: seconds, after which it and its descendants are killed: timed_out, exit_code 124
            (default: none).
        stdin: bytes, text, a binary file, or pieces of bytes by an iterable; without it the
            command finds the end of its input at once. In the background only bytes or text;
            stdin_open keeps it open for send_stdin().
        on_stdout, on_stderr: called with text as it comes; on_output: with each Output (bytes) of
            both streams in order.
        combined: stderr goes where stdout goes.
        check: raise CommandExit (or CommandTimeout) unless the exit code is 0.
        max_output_bytes: of each stream that are kept for the result; the rest is dropped and
            `truncated` set. Callbacks get all.

        Leaving early, by an exception or a cancellation, kills the command, unless it is in the
        background. Raises SpawnError if it can't be started, WrongState if the sandbox does not
        run, NotFound, ConnectionLost, Timeout if thawd does not keep the time.
        """
        argv = _values.argv_of(cmd)
        if background:
            return await self._start(argv, cwd, env, user, timeout, stdin, stdin_open, combined)
        if stdin_open:
            raise ValueError("stdin_open is for background=True; give stdin pieces instead")
        first = _frames.exec_frame(
            argv,
            _values.env_of(env),
            cwd,
            _values.user_of(user),
            stdin is not None,
            combined,
            _values.millis(timeout, "timeout") or 0,
            0,
        )
        collector = _Collector(max_output_bytes, on_stdout, on_stderr, on_output)
        feeder = Feeder(stdin) if stdin is not None else None
        deadline = None if timeout is None else monotonic() + timeout + TIMEOUT_MARGIN
        run = _Run(self._client, self._path, collector, feeder, deadline)
        return check_result(await run.run(first), argv, check)

    async def _start(
        self,
        argv: list[str],
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        timeout: float | None,
        stdin: bytes | str | None,
        stdin_open: bool,
        combined: bool,
    ) -> AsyncCommandHandle:
        if stdin is not None and not isinstance(stdin, (bytes, str)):
            raise TypeError("in the background stdin must be bytes or str; see stdin_open")
        data = stdin.encode() if isinstance(stdin, str) else stdin
        body = _values.exec_body(
            argv,
            env,
            cwd,
            user,
            timeout,
            data,
            combined,
            detach=True,
            stdin_open=stdin_open or None,
        )
        value = await self._client.call("POST", f"{self._path}/exec", body)
        return AsyncCommandHandle(self._client, self._path, ExecInfo._from(value))

    async def list(self) -> ExecInfos:
        """Commands that run and, for a while, those that ended; the oldest first."""
        value = await self._client.call("GET", f"{self._path}/execs")
        return [ExecInfo._from(each) for each in value["execs"]]

    async def connect(self, ident: str) -> AsyncCommandHandle:
        """A handle of a command by its id. Raises NotFound."""
        value = await self._client.call("GET", f"{self._path}/execs/{_values.quote(ident)}")
        return AsyncCommandHandle(self._client, self._path, ExecInfo._from(value))


class AsyncCommandHandle:
    """A command in the background. id: of the command; pid: in the sandbox; argv.

    It needs no connection: it lives on when this program ends, and commands.connect(id) finds it.
    """

    def __init__(self, client: AsyncClient, path: str, info: ExecInfo) -> None:
        self._client = client
        self._exec = f"{path}/execs/{_values.quote(info.id)}"
        self.id = info.id
        self.pid = info.pid
        self.argv = info.argv
        self.cursor = 0  # where follow() goes on

    def __repr__(self) -> str:
        return f"<thaw command {self.id} {self.argv!r}>"

    async def info(self) -> ExecInfo:
        """How it is now. Raises NotFound."""
        return ExecInfo._from(await self._client.call("GET", self._exec))

    async def reconnect(self, cursor: int | None = None) -> ExecInfo:
        """Ask for it anew and let follow() and wait() go on at CURSOR (default: where they are).
        Raises NotFound when it is forgotten."""
        info = await self.info()
        self.pid = info.pid
        self.cursor = self.cursor if cursor is None else cursor
        return info

    async def follow(self, cursor: int | None = None) -> AsyncIterator[Output]:
        """Output from CURSOR on (default: where it stopped; first: the oldest that is left), as it
        comes, until the command ends. Goes on by itself when thawd is restarted."""
        if cursor is not None:
            self.cursor = cursor
        ended = False
        while not ended:
            target = f"{self._exec}/logs" + _values.query(cursor=self.cursor, follow=1)
            response = await self._client.reopen(target, accept="text/event-stream")
            try:
                async for event in response.events(FOLLOW_SILENCE):
                    value = parse_json(event.data.encode())
                    if event.name in ("stdout", "stderr"):
                        data = base64.b64decode(value["data"])
                        self.cursor = value["cursor"] + len(data)
                        yield Output(event.name, data, value["cursor"])
                    elif event.name == "exit":
                        ended = True
                        break
            except ProtocolError:
                raise
            except (ConnectionLost, Timeout):
                pass
            finally:
                await response.aclose()
            if not ended:
                await sleep(FOLLOW_PAUSE)

    async def wait(
        self,
        timeout: float | None = None,
        *,
        check: bool = False,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        on_output: OnOutput | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        """Wait until it ends; its result with the output that is left of it.

        timeout: seconds; then Timeout is raised and the command goes on. The rest is as in run().
        Without callbacks the output is read when it has ended, else as it comes.
        """
        collector = _Collector(max_output_bytes, on_stdout, on_stderr, on_output)
        if on_stdout is None and on_stderr is None and on_output is None:
            info = await self._wait_end(timeout)
        else:
            if timeout is not None:
                raise ValueError("timeout together with callbacks: give the command a timeout")
            info = None
        self.cursor = 0
        async for piece in self.follow():
            collector.goes_on_at(piece.cursor)
            await collector.add(piece.stream, piece.data)
        await collector.finish()
        info = info or await self._wait_end(None)
        if info.lost or info.exit_code is None:
            raise _errors.GuestLost(f"how command {self.id} ended is not known", "guest_lost")
        return check_result(collector.result(self.id, info.pid, info.__dict__), self.argv, check)

    async def _wait_end(self, timeout: float | None) -> ExecInfo:
        end = None if timeout is None else monotonic() + timeout
        while True:
            step = WAIT_STEP if end is None else min(WAIT_STEP, max(0.0, end - monotonic()))
            target = f"{self._exec}/wait?timeout_ms={int(step * 1000)}"
            response = await self._client.reopen(target)
            try:
                info = ExecInfo._from(parse_json(await response.read(step + self._client.timeout)))
            except ProtocolError:
                raise
            except ConnectionLost:
                continue
            finally:
                await response.aclose()
            if info.state == "ended":
                return info
            if end is not None and monotonic() >= end:
                raise Timeout(f"command {self.id} still runs")

    async def logs(
        self,
        cursor: int | None = None,
        *,
        tail_bytes: int | None = None,
        stream: str | None = None,
        limit_bytes: int | None = None,
    ) -> Logs:
        """A part of its output, from CURSOR on (default: the oldest that is left), or the last
        tail_bytes of it. stream: only "stdout" or "stderr"."""
        query = _values.query(
            cursor=cursor, tail_bytes=tail_bytes, stream=stream, limit_bytes=limit_bytes
        )
        return Logs._from(await self._client.call("GET", f"{self._exec}/logs{query}"))

    async def wait_for_log(
        self,
        text: str | None = None,
        *,
        regex: str | None = None,
        stream: str | None = None,
        cursor: int | None = None,
        timeout: float = 30.0,
    ) -> LogMatch:
        """Wait for a line with TEXT in it, or that matches the POSIX extended REGEX, at or behind
        CURSOR. timeout: seconds. Raises Timeout; CommandExit if the command ends without it."""
        if (text is None) == (regex is None):
            raise ValueError("give text or regex")
        body: Json = {"timeout_ms": _values.millis(timeout, "timeout")}
        given = {"text": text, "regex": regex, "stream": stream, "cursor": cursor}
        body.update({name: value for name, value in given.items() if value is not None})
        value = await self._client.call(
            "POST", f"{self._exec}/wait-for-log", body, timeout=timeout + self._client.timeout
        )
        if value["matched"]:
            return LogMatch(value["line"], value["cursor"])
        wanted = text if text is not None else regex
        if value["ended"]:
            result = await self.wait()
            raise CommandExit(f"command {self.id} ended and had not printed {wanted!r}", result)
        raise Timeout(f"command {self.id} has not printed {wanted!r}")

    async def send_signal(self, signal: int | str) -> None:
        """To the command itself. signal: a number, or a name such as "SIGTERM". Raises WrongState
        if it has ended."""
        await self._client.call(
            "POST", f"{self._exec}/signal", {"signal": _values.signal_value(signal)}
        )

    async def kill(self) -> None:
        """SIGKILL for the command and all its descendants; also when it has ended."""
        await self._client.call("POST", f"{self._exec}/kill", {})

    async def send_stdin(self, data: bytes | str, eof: bool = False) -> None:
        """Write to its stdin (run with stdin_open=True); eof: and end it. Waits until the command
        has room for it. Raises WrongState if it has no stdin that is open."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        target = f"{self._exec}/stdin" + _values.query(eof=1 if eof else None)
        await self._client.call("PUT", target, source=raw)

    async def close_stdin(self) -> None:
        """Its stdin ends."""
        await self.send_stdin(b"", eof=True)

    async def forget(self) -> None:
        """Kill it if it runs, and forget it and its output."""
        await self._client.call("DELETE", self._exec)
