# SPDX-License-Identifier: Apache-2.0
"""Client of thawd: sandboxes that are microVMs.

    from thaw import Sandbox

    with Sandbox.create("python") as sandbox:
        print(sandbox.commands.run(["python3", "-c", "print(1 + 1)"]).stdout)

Blocking: Sandbox, Client. For asyncio the same names with Async in front. Times are in seconds,
sizes in bytes, unless a name says otherwise. What fails raises a ThawError.
"""

from ._async._client import AsyncClient
from ._async._commands import AsyncCommandHandle, AsyncCommands
from ._async._files import AsyncByteStream, AsyncFiles, AsyncWatch
from ._async._ports import AsyncPorts, AsyncPortStream
from ._async._pty import AsyncPty, AsyncPtyHandle
from ._async._sandbox import AsyncForkResult, AsyncSandbox
from ._errors import (
    Capacity,
    CommandExit,
    CommandTimeout,
    Conflict,
    ConnectionLost,
    FileError,
    FileNotFound,
    Forbidden,
    Gone,
    GuestLost,
    InternalError,
    InvalidRequest,
    NoSpace,
    NotFound,
    PortClosed,
    ProtocolError,
    SpawnError,
    ThawError,
    Timeout,
    TooLarge,
    TooMany,
    Unauthorized,
    Unsupported,
    WrongState,
)
from ._models import (
    CommandResult,
    Event,
    ExecInfo,
    FileEntry,
    FileEvent,
    FileStat,
    HttpAnswer,
    LogMatch,
    Logs,
    Output,
    Pool,
    Preview,
    SandboxInfo,
    Size,
    Snapshot,
    Start,
    Stats,
    Stop,
    TarResult,
    Template,
)
from ._sync._client import Client
from ._sync._commands import CommandHandle, Commands
from ._sync._files import ByteStream, Files, Watch
from ._sync._ports import Ports, PortStream
from ._sync._pty import Pty, PtyHandle
from ._sync._sandbox import ForkResult, Sandbox

__version__ = "0.1.0"

__all__ = [
    "AsyncByteStream",
    "AsyncClient",
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncForkResult",
    "AsyncPortStream",
    "AsyncPorts",
    "AsyncPty",
    "AsyncPtyHandle",
    "AsyncSandbox",
    "AsyncWatch",
    "ByteStream",
    "Capacity",
    "Client",
    "CommandExit",
    "CommandHandle",
    "CommandResult",
    "CommandTimeout",
    "Commands",
    "Conflict",
    "ConnectionLost",
    "Event",
    "ExecInfo",
    "FileEntry",
    "FileError",
    "FileEvent",
    "FileNotFound",
    "FileStat",
    "Files",
    "Forbidden",
    "ForkResult",
    "Gone",
    "GuestLost",
    "HttpAnswer",
    "InternalError",
    "InvalidRequest",
    "LogMatch",
    "Logs",
    "NoSpace",
    "NotFound",
    "Output",
    "Pool",
    "PortClosed",
    "PortStream",
    "Ports",
    "Preview",
    "ProtocolError",
    "Pty",
    "PtyHandle",
    "Sandbox",
    "SandboxInfo",
    "Size",
    "Snapshot",
    "SpawnError",
    "Start",
    "Stats",
    "Stop",
    "TarResult",
    "Template",
    "ThawError",
    "Timeout",
    "TooLarge",
    "TooMany",
    "Unauthorized",
    "Unsupported",
    "Watch",
    "WrongState",
]
