# SPDX-License-Identifier: Apache-2.0
"""HTTP over a Unix socket, as the APIs of Firecracker and Cloud Hypervisor take it."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

from lab.measure import Failed
from lab.peers.process import BOOT_PATIENCE_S, RESTORE_STEP_S, Process


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=BOOT_PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(BOOT_PATIENCE_S)
            sock.connect(str(self._path))
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class Rest:
    """One connection that serves all requests; made as soon as @process listens at @path."""

    def __init__(self, process: Process, path: Path, prefix: str = "") -> None:
        self._http = _Connection(path)
        self._prefix = prefix
        self._name = process.name
        process.until("its API socket", self._http.connect, RESTORE_STEP_S)

    def __call__(self, method: str, path: str, body: object = None) -> None:
        """One request; Failed unless its answer is a success."""
        data = b"" if body is None else json.dumps(body).encode()
        try:
            self._http.putrequest(method, self._prefix + path, skip_accept_encoding=True)
            self._http.putheader("Accept", "application/json")
            if data:
                self._http.putheader("Content-Type", "application/json")
                self._http.putheader("Content-Length", str(len(data)))
            self._http.endheaders(data or None)
            answer = self._http.getresponse()
            text = answer.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{self._name}: {method} {path}: {error}") from error
        if not 200 <= answer.status < 300:
            raise Failed(f"{self._name}: {method} {path}: status {answer.status}: {text}")

    def close(self) -> None:
        self._http.close()
