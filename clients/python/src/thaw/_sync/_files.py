# SPDX-License-Identifier: Apache-2.0
# Made by clients/python/unasync of _async/_files.py: change that one.
"""Files in a sandbox. Nothing is held in memory but what is asked for by read()."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Union

from .. import _values
from .._errors import ConnectionLost, FileError
from .._models import (
    FileEntry,
    FileEvent,
    FileStat,
    Json,
    TarResult,
    path_field,
    path_of,
)
from ._conn import Response, parse_json
from ._io import Source

if TYPE_CHECKING:
    from ._client import Client

Path = Union[str, bytes, "os.PathLike[str]"]
FileEntries = list[FileEntry]
WATCH_SILENCE = 45.0  # seconds; something comes every 15


class ByteStream:
    """A body as it comes: iterate over it, or read() all that is left. Usable in a with
    statement, which closes it; an end before its time raises ConnectionLost.

    size_bytes: of the whole body, None if it is not known.
    """

    def __init__(self, client: Client, response: Response) -> None:
        self._client = client
        self._response = response
        self._iterator = response.iter_bytes(client.timeout)
        text = response.headers.get("content-length", "")
        self.size_bytes = int(text) if text.isdigit() else None

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return self._iterator

    def iter_bytes(self) -> Iterator[bytes]:
        """What iterating over it does."""
        return self._iterator

    def read(self) -> bytes:
        """All that is left."""
        return b"".join([piece for piece in self._iterator])

    def save(self, file: IO[bytes]) -> int:
        """Write all that is left to a binary file; how many bytes that were."""
        total = 0
        for piece in self._iterator:
            file.write(piece)
            total += len(piece)
        return total

    def close(self) -> None:
        self._client._finish(self._response)


class Files:
    """sandbox.files: paths are absolute, or relative to `cwd` (an absolute folder, default /).

    Paths are str, bytes or os.PathLike; one that is not UTF-8 is told with surrogates, as by
    os.fsdecode(). user: "UID:GID", whose rights count (default "0:0"). What fails raises FileError
    with errno, operation and path; FileNotFound for ENOENT; WrongState if the sandbox does not run.
    """

    def __init__(self, client: Client, path: str) -> None:
        self._client = client
        self._files = f"{path}/files"

    def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> bytes:
        """A file's content, or LENGTH bytes of it from OFFSET on (fewer at its end)."""
        with self.read_stream(path, offset=offset, length=length, cwd=cwd, user=user) as stream:
            return stream.read()

    def read_text(
        self,
        path: Path,
        encoding: str = "utf-8",
        *,
        cwd: str | None = None,
        user: str | None = None,
    ) -> str:
        """A file's content as text. Raises UnicodeDecodeError."""
        return (self.read(path, cwd=cwd, user=user)).decode(encoding)

    def read_stream(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> ByteStream:
        """The same piece by piece, for files of any size: close it, or use it in a with
        statement."""
        if offset < 0 or (length is not None and length < 1):
            raise ValueError("offset must be at least 0, length at least 1")
        headers = []
        if offset or length is not None:
            last = "" if length is None else str(offset + length - 1)
            headers = [("Range", f"bytes={offset}-{last}")]
        target = self._files + _values.file_query(path, cwd, user)
        return ByteStream(self._client, self._client.stream("GET", target, headers=headers))

    def write(
        self,
        path: Path,
        data: Source,
        *,
        mode: int | None = None,
        append: bool = False,
        cwd: str | None = None,
        user: str | None = None,
    ) -> int:
        """Write a file, made or cut to nothing first; how many bytes that were.

        data: bytes, text (as UTF-8), a binary file, or pieces of bytes by an iterable; the last
        two are sent as they come. mode: permission bits that it has afterwards (default: 0o644 for
        one that is made, and an existing one keeps its own).
        append: at the end of what is there. Parent folders must be there. Not atomic.
        """
        if isinstance(data, str):
            data = data.encode()
        target = self._files + _values.file_query(
            path, cwd, user, mode=_values.octal(mode), append=1 if append else None
        )
        value = self._client.call("PUT", target, source=data)
        return int(value["size_bytes"])

    def stat(
        self,
        path: Path,
        *,
        follow: bool = True,
        cwd: str | None = None,
        user: str | None = None,
    ) -> FileStat:
        """What a file is. follow=False: of a symbolic link itself."""
        query = _values.file_query(path, cwd, user, follow=int(follow))
        return FileStat._from(self._client.call("GET", f"{self._files}/stat{query}"))

    def exists(
        self,
        path: Path,
        *,
        follow: bool = True,
        cwd: str | None = None,
        user: str | None = None,
    ) -> bool:
        """Is there something of this name? Raises FileError when that can't be seen."""
        try:
            self.stat(path, follow=follow, cwd=cwd, user=user)
        except FileError as error:
            if error.errno in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    def list(
        self,
        path: Path = "/",
        *,
        depth: int = 1,
        cwd: str | None = None,
        user: str | None = None,
    ) -> FileEntries:
        """What is in a folder, ordered by path. depth: 2 for the entries of its folders as well,
        and so on. Symbolic links are not followed."""
        query = _values.file_query(path, cwd, user, depth=depth)
        value = self._client.call("GET", f"{self._files}/list{query}")
        return sorted(
            (FileEntry._from(each) for each in value["entries"]), key=lambda entry: entry.path
        )

    def _post(self, operation: str, body: Json, cwd: str | None, user: str | None) -> None:
        _values.user_of(user)
        body.update({k: v for k, v in (("cwd", cwd), ("user", user)) if v is not None})
        self._client.call("POST", f"{self._files}/{operation}", body)

    def make_dir(
        self,
        path: Path,
        *,
        recursive: bool = True,
        mode: int | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> None:
        """Make a folder, with its parents; one that is there is no error. recursive=False: the
        parent must be there, and the folder not. mode: permission bits (default 0o755)."""
        body: Json = {**path_field("path", path), "recursive": recursive}
        if mode is not None:
            body["mode"] = mode
        self._post("mkdir", body, cwd, user)

    def rename(
        self,
        source: Path,
        target: Path,
        *,
        cwd: str | None = None,
        user: str | None = None,
    ) -> None:
        """rename(2): replaces a file at once; errno EXDEV between file systems."""
        body = {**path_field("from", source), **path_field("to", target)}
        self._post("rename", body, cwd, user)

    def remove(
        self,
        path: Path,
        *,
        recursive: bool = False,
        force: bool = False,
        cwd: str | None = None,
        user: str | None = None,
    ) -> None:
        """Remove a file, or with recursive a folder and all in it. force: it need not be there."""
        body = {**path_field("path", path), "recursive": recursive, "force": force}
        self._post("remove", body, cwd, user)

    def symlink(
        self, target: Path, path: Path, *, cwd: str | None = None, user: str | None = None
    ) -> None:
        """Make PATH a symbolic link that says TARGET, which need not exist."""
        self._post(
            "symlink", {**path_field("target", target), **path_field("path", path)}, cwd, user
        )

    def chmod(
        self, path: Path, mode: int, *, cwd: str | None = None, user: str | None = None
    ) -> None:
        """Set permission bits, such as 0o600; follows a symbolic link."""
        self._post("chmod", {**path_field("path", path), "mode": mode}, cwd, user)

    def chown(
        self,
        path: Path,
        uid: int,
        gid: int,
        *,
        follow: bool = True,
        cwd: str | None = None,
        user: str | None = None,
    ) -> None:
        """Set owner and group. follow=False: of a symbolic link itself."""
        body = {**path_field("path", path), "uid": uid, "gid": gid}
        if not follow:
            body["follow"] = False
        self._post("chown", body, cwd, user)

    def tar_out(self, path: Path, *, cwd: str | None = None, user: str | None = None) -> ByteStream:
        """A file or a folder with all in it as a tar stream. Names are relative to the folder
        ("./a"); of a file there is its name alone."""
        target = f"{self._files}/tar" + _values.file_query(path, cwd, user)
        return ByteStream(self._client, self._client.stream("GET", target))

    def tar_in(
        self,
        path: Path,
        data: Source,
        *,
        privileged: bool = False,
        cwd: str | None = None,
        user: str | None = None,
    ) -> TarResult:
        """Unpack a tar stream (bytes, a binary file, or pieces by an iterable) into the folder
        PATH, which must be there. Nothing is written outside of it. privileged: keep setuid bits,
        devices and security attributes, which are dropped otherwise (and told in warnings)."""
        query = _values.file_query(path, cwd, user, privileged=1 if privileged else None)
        value = self._client.call(
            "PUT", f"{self._files}/tar{query}", source=data, content_type="application/x-tar"
        )
        return TarResult._from(value)

    def watch(
        self,
        path: Path,
        *,
        recursive: bool = False,
        cwd: str | None = None,
        user: str | None = None,
    ) -> Watch:
        """Changes of a file or folder, from now on: iterate over it. When this returns no change
        is missed any more; type "overflow" tells that changes were lost."""
        query = _values.file_query(path, cwd, user, recursive=int(recursive))
        response = self._client.stream(
            "GET", f"{self._files}/watch{query}", accept="text/event-stream"
        )
        watch = Watch(response)
        try:
            watch._ready()
        except BaseException:
            response.close()
            raise
        return watch


class Watch:
    """Changes as they happen; usable in a with statement. Ends when what is watched is gone;
    raises ConnectionLost when the connection or the sandbox is."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._events = response.events(WATCH_SILENCE)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> None:
        for event in self._events:
            if event.name == "ready":
                return
        raise ConnectionLost("the connection broke off before the watch began")

    def __iter__(self) -> Iterator[FileEvent]:
        for event in self._events:
            if event.name == "end":
                return
            value = parse_json(event.data.encode())
            yield FileEvent(
                event.name,
                path_of(value, "path") or "",
                path_of(value, "from"),
                value.get("directory"),
            )
        raise ConnectionLost("the watch broke off: changes may have been missed")

    def close(self) -> None:
        """Ends the watch."""
        self._response.close()
