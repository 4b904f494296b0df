# SPDX-License-Identifier: Apache-2.0
"""Exceptions. All are ThawError; thawd's answers become the class that belongs to their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._models import CommandResult


class ThawError(Exception):
    """Anything that fails.

    Attributes: code (thawd's, such as "not_found"; "" when it did not come from thawd), status (of
    HTTP; 0 when it did not come from thawd), message, details (more for programs; may be empty).
    """

    def __init__(
        self,
        message: str,
        code: str = "",
        status: int = 0,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.details: dict[str, Any] = details or {}


class InvalidRequest(ThawError):
    """The request is wrong: a value, or a field that this thawd does not know."""


class Unsupported(InvalidRequest):
    """Right, but this thawd can't do it."""


class TooLarge(InvalidRequest):
    """The request is larger than thawd takes."""


class Unauthorized(ThawError):
    """No token, or a wrong one: THAW_API_TOKEN, or Client(token=...)."""


class Forbidden(ThawError):
    """It is not allowed to this caller."""


class NotFound(ThawError):
    """There is no such sandbox, snapshot, template or command."""


class Gone(NotFound):
    """It was there."""


class Conflict(ThawError):
    """It exists already, or something needs it."""

    @property
    def differences(self) -> list[dict[str, Any]]:
        """Of a sandbox that exists with another specification: [{"field", "have", "want"}]."""
        return list(self.details.get("differences", []))

    @property
    def dependents(self) -> list[Any]:
        """What needs the snapshot or template that was to be removed."""
        return list(self.details.get("dependents", []))


class WrongState(ThawError):
    """The sandbox (or command) is in a state that does not allow it."""

    @property
    def state(self) -> str | None:
        return self.details.get("state")


class Capacity(ThawError):
    """A quota or the host's memory does not allow it now."""

    retry_after: float | None = None  # seconds after which to try again


class TooMany(Capacity):
    """Too many requests or connections at once."""


class SpawnError(ThawError):
    """The command could not be started."""

    @property
    def stage(self) -> str:
        """ "cwd", "exec" or "setup"."""
        return str(self.details.get("stage", ""))

    @property
    def errno(self) -> str:
        """Linux name of what went wrong, such as "ENOENT"."""
        return str(self.details.get("errno", ""))


class FileError(ThawError):
    """A file operation failed in the sandbox."""

    @property
    def errno(self) -> str:
        """Linux name, such as "ENOENT"."""
        return str(self.details.get("errno", ""))

    @property
    def operation(self) -> str:
        return str(self.details.get("operation", ""))

    @property
    def path(self) -> str:
        """As it was given."""
        return str(self.details.get("path", ""))

    @property
    def destination(self) -> str | None:
        """Of a rename."""
        return self.details.get("destination")


class FileNotFound(FileError, NotFound):
    """FileError with ENOENT."""


class NoSpace(ThawError):
    """The host's disk is full."""


class GuestLost(ThawError):
    """The sandbox's machine ended or does not answer."""


class PortClosed(ThawError):
    """Nobody listens on the port in the sandbox."""


class Timeout(ThawError):
    """It took longer than it was given."""


class InternalError(ThawError):
    """A fault of thawd; its log says more."""


class ConnectionLost(ThawError):
    """thawd can't be reached, or the connection broke off."""


class ProtocolError(ConnectionLost):
    """What came is not what thawd says."""


class CommandExit(ThawError):
    """run(check=True): the command ended with another exit code than 0. result has all of it."""

    def __init__(self, message: str, result: CommandResult) -> None:
        super().__init__(message)
        self.result = result


class CommandTimeout(CommandExit, Timeout):
    """run(check=True): the command was killed because its time was over."""


_BY_CODE: dict[str, type[ThawError]] = {
    "invalid_request": InvalidRequest,
    "unknown_field": InvalidRequest,
    "unsupported": Unsupported,
    "method_not_allowed": InvalidRequest,
    "too_large": TooLarge,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "gone": Gone,
    "conflict": Conflict,
    "wrong_state": WrongState,
    "capacity": Capacity,
    "too_many": TooMany,
    "spawn_failed": SpawnError,
    "file_error": FileError,
    "no_space": NoSpace,
    "guest_lost": GuestLost,
    "port_closed": PortClosed,
    "timeout": Timeout,
    "internal": InternalError,
}


def from_body(status: int, body: object, retry_after: str | None = None) -> ThawError:
    """The exception for thawd's {"error":{"code","message","details"}}."""
    inner = body.get("error") if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return ProtocolError(f"thawd answered with status {status} and no error text")
    code = str(inner.get("code", ""))
    details = inner.get("details")
    details = details if isinstance(details, dict) else {}
    kind = _BY_CODE.get(code, ThawError)
    if kind is FileError and details.get("errno") == "ENOENT":
        kind = FileNotFound
    error = kind(str(inner.get("message", code)), code, status, details)
    if isinstance(error, Capacity) and retry_after is not None and retry_after.isdigit():
        error.retry_after = float(retry_after)
    return error
