# SPDX-License-Identifier: Apache-2.0
# Made by clients/python/unasync of _async/_sandbox.py: change that one.
"""A sandbox by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .. import _errors, _values
from .._errors import ThawError, Timeout
from .._models import Json, SandboxInfo, Snapshot, Stats, Stop
from .._values import UNSET, Unset
from ._client import Client
from ._commands import Commands
from ._files import Files
from ._io import monotonic
from ._ports import Ports
from ._pty import Pty

WAIT_STEP = 60.0  # seconds of one wait call


class Sandbox:
    """A sandbox. name: what it is known by; info: as it was at the last answer; client: its thawd.

    commands, files, pty and ports are what can be done in it while it runs. It is made by create()
    or get_or_create(), found by connect(). In a with statement one made by create() is killed at
    the end; any other one stays.
    """

    def __init__(self, client: Client, info: SandboxInfo, *, made: bool, own_client: bool) -> None:
        """Not meant to be called: see create(), get_or_create(), connect()."""
        self.client = client
        self.name = info.name
        self.info = info
        self._made = made
        self._own_client = own_client
        self._path = f"/v1/sandboxes/{_values.quote(info.name)}"
        self.commands = Commands(client, self._path)
        self.files = Files(client, self._path)
        self.pty = Pty(client, self._path)
        self.ports = Ports(client, self._path)

    def __repr__(self) -> str:
        return f"<thaw sandbox {self.name} ({self.info.state})>"

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._made:
                self.kill()
        finally:
            self.close()

    def close(self) -> None:
        """Ends this program's connections; the sandbox stays."""
        if self._own_client:
            self.client.close()

    @classmethod
    def _made_by(
        cls, client: Client | None, method: str, target: str, body: Json | None, made: bool
    ) -> Sandbox:
        used = client or Client()
        try:
            value = used.call(method, target, body)
            return cls(used, SandboxInfo._from(value), made=made, own_client=client is None)
        except BaseException:
            if client is None:
                used.close()
            raise

    @classmethod
    def create(
        cls,
        template: str | None = None,
        *,
        name: str | None = None,
        snapshot: str | None = None,
        size: str | None = None,
        vcpus: int | None = None,
        memory_bytes: int | None = None,
        scratch_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] | None = None,
        internet: bool = False,
        labels: Mapping[str, str] | None = None,
        inactivity_timeout: float | None = None,
        hard_timeout: float | None = None,
        keep_alive: bool = False,
        pids_max: int | None = None,
        nofile: int | None = None,
        hostname: str | None = None,
        auto_remove: bool = False,
        start: bool = True,
        client: Client | None = None,
    ) -> Sandbox:
        """Make a sandbox and (unless start is False) start it.

        template: what it starts from (default: thawd's setting); or snapshot: id or name of one.
        name: 1 to 63 of a-z, 0-9 and "-"; default: a new one.
        size: "lite", "basic", "standard-1" to "standard-4"; or vcpus and memory_bytes.
        scratch_bytes: what it may write to its disk.
        env, entrypoint: a command run at each start; when it ends the sandbox stops.
        labels: at most 10; keys of 1 to 16, values of up to 64 bytes.
        inactivity_timeout: seconds without an open call after which it is stopped, up to 6 hours
            (default: thawd's setting). hard_timeout: seconds after its start (default: never).
            keep_alive: never stopped for inactivity.
        pids_max: processes of a command; nofile: open files of a process.
        auto_remove: it is deleted when it stops, for whatever reason.
        client: default: a new one by the environment, closed with the sandbox.

        Raises Conflict if the name is taken, NotFound for an unknown template or snapshot,
        InvalidRequest, Capacity.
        """
        body = _values.spec(
            template=template,
            snapshot=snapshot,
            size=size,
            vcpus=vcpus,
            memory_bytes=memory_bytes,
            scratch_bytes=scratch_bytes,
            env=env,
            entrypoint=entrypoint,
            internet=internet,
            labels=labels,
            inactivity_timeout=inactivity_timeout,
            hard_timeout=hard_timeout,
            keep_alive=keep_alive,
            pids_max=pids_max,
            nofile=nofile,
            hostname=hostname,
            auto_remove=auto_remove,
            start=start,
        )
        if name is not None:
            body["name"] = name
        return cls._made_by(client, "POST", "/v1/sandboxes", body, True)

    @classmethod
    def get_or_create(
        cls,
        name: str,
        template: str | None = None,
        *,
        snapshot: str | None = None,
        size: str | None = None,
        vcpus: int | None = None,
        memory_bytes: int | None = None,
        scratch_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        entrypoint: Sequence[str] | None = None,
        internet: bool = False,
        labels: Mapping[str, str] | None = None,
        inactivity_timeout: float | None = None,
        hard_timeout: float | None = None,
        keep_alive: bool = False,
        pids_max: int | None = None,
        nofile: int | None = None,
        hostname: str | None = None,
        auto_remove: bool = False,
        start: bool = True,
        client: Client | None = None,
    ) -> Sandbox:
        """The sandbox of this name: made if there is none, started if it was stopped. Safe to call
        from many programs at once. Arguments as in create().

        Raises Conflict (its differences) if it exists with another specification.
        """
        body = _values.spec(
            template=template,
            snapshot=snapshot,
            size=size,
            vcpus=vcpus,
            memory_bytes=memory_bytes,
            scratch_bytes=scratch_bytes,
            env=env,
            entrypoint=entrypoint,
            internet=internet,
            labels=labels,
            inactivity_timeout=inactivity_timeout,
            hard_timeout=hard_timeout,
            keep_alive=keep_alive,
            pids_max=pids_max,
            nofile=nofile,
            hostname=hostname,
            auto_remove=auto_remove,
            start=start,
        )
        target = f"/v1/sandboxes/{_values.quote(name)}"
        return cls._made_by(client, "PUT", target, body, False)

    @classmethod
    def connect(cls, name: str, *, client: Client | None = None) -> Sandbox:
        """The sandbox of this name, in whatever state it is. Raises NotFound."""
        return cls._made_by(client, "GET", f"/v1/sandboxes/{_values.quote(name)}", None, False)

    @classmethod
    def list(
        cls,
        labels: Mapping[str, str | None] | None = None,
        state: str | None = None,
        *,
        client: Client | None = None,
    ) -> Iterator[SandboxInfo]:
        """All sandboxes, ordered by name. labels: only those that have these; a value of None: any
        value. state: only those in it."""
        used = client or Client()
        try:
            for info in used.sandboxes(labels, state):
                yield info
        finally:
            if client is None:
                used.close()

    def _post(
        self, verb: str, body: Json | None = None, timeout: float | None = None
    ) -> SandboxInfo:
        value = self.client.call("POST", f"{self._path}/{verb}", body or {}, timeout=timeout)
        self.info = SandboxInfo._from(value)
        return self.info

    def refresh(self) -> SandboxInfo:
        """How it is now; also in info. Raises NotFound."""
        self.info = SandboxInfo._from(self.client.call("GET", self._path))
        return self.info

    def update(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        inactivity_timeout: float | None | Unset = UNSET,
        hard_timeout: float | None | Unset = UNSET,
        keep_alive: bool | None = None,
    ) -> SandboxInfo:
        """Change labels (all of them) and time-outs (seconds; None: thawd's default, or none);
        what is left out stays."""
        body: Json = {}
        if labels is not None:
            body["labels"] = dict(labels)
        times = (("inactivity_timeout", inactivity_timeout), ("hard_timeout", hard_timeout))
        for name, value in times:
            if not isinstance(value, Unset):
                body[f"{name}_ms"] = _values.millis(value, name)
        if keep_alive is not None:
            body["keep_alive"] = keep_alive
        self.info = SandboxInfo._from(self.client.call("PATCH", self._path, body))
        return self.info

    def start(self) -> SandboxInfo:
        """Start it again. Raises WrongState if it runs, Capacity."""
        return self._post("start")

    def stop(self, grace: float = 10.0, reason: str | None = None) -> SandboxInfo:
        """SIGTERM for every process, GRACE seconds to end, then the end. Its disk and processes are
        gone; start() begins anew."""
        body: Json = {"grace_ms": round(grace * 1000)}
        if reason is not None:
            body["reason"] = reason
        return self._post("stop", body, grace + self.client.timeout)

    def destroy(self, reason: str | None = None) -> SandboxInfo:
        """End its machine at once; its name stays, stopped."""
        return self._post("destroy", {"reason": reason} if reason is not None else None)

    def kill(self, reason: str | None = None) -> None:
        """End its machine at once and forget its name; also when there is none any more."""
        self.client.delete_sandbox(self.name, reason)

    def delete(self, reason: str | None = None) -> None:
        """The same as kill()."""
        self.kill(reason)

    def signal(self, signal: int | str) -> None:
        """To its entrypoint. Raises WrongState if it has none that runs."""
        body = {"signal": _values.signal_value(signal)}
        self.client.call("POST", f"{self._path}/signal", body)

    def touch(self) -> None:
        """Its inactivity time-out counts from now."""
        self.client.call("POST", f"{self._path}/touch", {})

    def pause(self) -> SandboxInfo:
        """Keep memory, disk and processes in a snapshot and free its machine."""
        return self._post("pause")

    def resume(self) -> SandboxInfo:
        """Go on where pause() stopped. Raises WrongState if it is not paused, Capacity."""
        return self._post("resume")

    def fork(
        self,
        count: int = 1,
        *,
        names: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> ForkResult:
        """Copies of it as it is, processes included; it goes on after milliseconds.

        names: one each (default: new ones). labels: default: its own. One copy that fails does not
        fail the others: see ForkResult. Raises WrongState if it does not run, Capacity.
        """
        body: Json = {"count": count}
        if names is not None:
            body["names"] = list(names)
        if labels is not None:
            body["labels"] = dict(labels)
        value = self.client.call("POST", f"{self._path}/fork", body)
        sandboxes: list[Sandbox] = []
        errors: list[ThawError] = []
        for each in value["forks"]:
            if "sandbox" in each:
                info = SandboxInfo._from(each["sandbox"])
                sandboxes.append(Sandbox(self.client, info, made=True, own_client=False))
            else:
                errors.append(_errors.from_body(0, each))
        return ForkResult(value["snapshot"], value["pause_ms"], sandboxes, errors)

    def snapshot(
        self, name: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Snapshot:
        """Keep it as it is now; it goes on. create(snapshot=...) starts from it."""
        body: Json = {}
        if name is not None:
            body["name"] = name
        if labels is not None:
            body["labels"] = dict(labels)
        return Snapshot._from(self.client.call("POST", f"{self._path}/snapshots", body))

    def wait(self, timeout: float | None = None) -> Stop:
        """Wait until it stops; how. timeout: seconds; then Timeout is raised. Waiting keeps it
        from nothing: it is no activity. Raises NotFound if it is deleted meanwhile."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            step = WAIT_STEP if end is None else min(WAIT_STEP, max(0.0, end - monotonic()))
            target = f"{self._path}/wait?timeout_ms={int(step * 1000)}"
            limit = step + self.client.timeout
            value = self.client.call("GET", target, timeout=limit)
            if not value["running"]:
                if value["stop"] is None:
                    raise _errors.WrongState(f"sandbox {self.name!r} has not been started")
                return Stop._from(value["stop"])
            if end is not None and monotonic() >= end:
                raise Timeout(f"sandbox {self.name!r} still runs")

    def stats(self) -> Stats:
        """What it uses now. Raises WrongState if it does not run."""
        return Stats._from(self.client.call("GET", f"{self._path}/stats"))


@dataclass(frozen=True)
class ForkResult:
    """snapshot: id of what the copies stand on; pause_ms: how long the original stood still;
    sandboxes: the copies (a with statement kills them at its end); errors: of those that failed."""

    snapshot: str
    pause_ms: float
    sandboxes: list[Sandbox]
    errors: list[ThawError]
