#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for firecracker and cloud-hypervisor, as far as the lab's adapters use them.

It is as strict as their API descriptions: a request out of order, with a field that the API does
not have or without one that it needs, is answered by status 400, and a socket that is in the way
ends it. Behind its vsock socket a real thaw-shim answers. Every request is appended to the file
that FAKE_PEER_LOG names. Its own name says which of the two it is.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

NAME = Path(sys.argv[0]).name
FIRECRACKER = NAME == "firecracker"

# (method, path): needed fields, allowed ones. From the two projects' API descriptions.
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "PUT /machine-config": ({"vcpu_count", "mem_size_mib"}, {"smt", "track_dirty_pages"}),
    "PUT /boot-source": ({"kernel_image_path"}, {"initrd_path", "boot_args"}),
    "PUT /pmem/root": ({"id", "path_on_host"}, {"root_device", "read_only"}),
    "PUT /drives/root": ({"drive_id", "is_root_device"}, {"path_on_host", "is_read_only"}),
    "PUT /vsock": ({"guest_cid", "uds_path"}, set()),
    "PUT /entropy": (set(), {"rate_limiter"}),
    "PUT /actions": ({"action_type"}, set()),
    "PATCH /vm": ({"state"}, set()),
    "PUT /snapshot/create": ({"mem_file_path", "snapshot_path"}, {"snapshot_type"}),
    "PUT /snapshot/load": ({"snapshot_path", "mem_backend"}, {"resume_vm", "track_dirty_pages"}),
    "PUT /api/v1/vm.create": (
        {"payload"},
        {"cpus", "memory", "pmem", "vsock", "rng", "serial", "console"},
    ),
    "PUT /api/v1/vm.boot": (set(), set()),
    "PUT /api/v1/vm.pause": (set(), set()),
    "PUT /api/v1/vm.resume": (set(), set()),
    "PUT /api/v1/vm.snapshot": ({"destination_url"}, set()),
    "PUT /api/v1/vm.restore": ({"source_url"}, {"memory_restore_mode", "prefault", "resume"}),
}


class Refused(Exception):
    """The message of an answer with status 400."""


class Vm:
    """What the requests made so far have led to."""

    def __init__(self) -> None:
        self.state = "new"  # new, paused, running
        self.config: dict[str, dict[str, object]] = {}

    def need(self, *states: str) -> None:
        if self.state not in states:
            raise Refused(f"the machine is {self.state}")

    def run(self, vsock: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(vsock)  # ends us when it is there, as it does both of them
        listener.listen()
        threading.Thread(target=serve_vsock, args=(listener,), daemon=True).start()

    def firecracker(self, request: str, body: dict[str, object]) -> None:
        if request == "PUT /actions":
            self.need("new")
            missing = {"PUT /machine-config", "PUT /boot-source", "PUT /vsock"} - set(self.config)
            if missing or body["action_type"] != "InstanceStart":
                raise Refused(f"not configured: {missing}")
            self.run(str(self.config["PUT /vsock"]["uds_path"]))
            self.state = "running"
        elif request == "PATCH /vm":
            self.need("running", "paused")
            self.state = {"Paused": "paused", "Resumed": "running"}[str(body["state"])]
        elif request == "PUT /snapshot/create":
            self.need("paused")
            vsock = self.config["PUT /vsock"]["uds_path"]
            Path(str(body["snapshot_path"])).write_text(json.dumps({"vsock": vsock}))
            Path(str(body["mem_file_path"])).write_bytes(b"memory")
        elif request == "PUT /snapshot/load":
            if self.config:
                raise Refused("the machine is configured")
            backend = body["mem_backend"]
            assert isinstance(backend, dict)
            if backend["backend_type"] != "File":
                raise Refused("backend_type")
            if Path(backend["backend_path"]).read_bytes() != b"memory":
                raise Refused("not a memory file")
            saved = json.loads(Path(str(body["snapshot_path"])).read_text())
            self.run(saved["vsock"])
            self.state = "running" if body.get("resume_vm") else "paused"
        else:
            self.need("new")
            self.config[request] = body

    def cloud_hypervisor(self, request: str, body: dict[str, object]) -> None:
        verb = request.rpartition(".")[2]
        if verb == "create":
            self.need("new")
            self.config["vm"] = body
            self.state = "created"
        elif verb == "boot":
            self.need("created")
            vsock = self.config["vm"]["vsock"]
            assert isinstance(vsock, dict)
            self.run(vsock["socket"])
            self.state = "running"
        elif verb == "pause":
            self.need("running")
            self.state = "paused"
        elif verb == "resume":
            self.need("paused")
            self.state = "running"
        elif verb == "snapshot":
            self.need("paused")
            folder = Path(str(body["destination_url"]).removeprefix("file://"))
            if list(folder.iterdir()):
                raise Refused(f"{folder} is not empty")
            (folder / "config.json").write_text(json.dumps(self.config["vm"]))
        elif verb == "restore":
            self.need("new")
            if body.get("memory_restore_mode", "Copy") not in ("Copy", "OnDemand"):
                raise Refused("memory_restore_mode")
            folder = Path(str(body["source_url"]).removeprefix("file://"))
            self.config["vm"] = json.loads((folder / "config.json").read_text())
            vsock = self.config["vm"]["vsock"]
            assert isinstance(vsock, dict)
            self.run(vsock["socket"])
            self.state = "paused"


VM = Vm()


def serve_vsock(listener: socket.socket) -> None:
    """CONNECT, then a thaw-shim for the stream. The first stream after the start is dropped, as a
    guest that resets its streams does."""
    first = True
    while True:
        sock, _ = listener.accept()
        line = b""
        while not line.endswith(b"\n"):
            line += sock.recv(1) or b"\n"
        if line != b"CONNECT 1024\n" or VM.state != "running":
            sock.close()
            continue
        sock.sendall(b"OK 1073741824\n")
        if first:
            first = False
            sock.close()
            continue
        fd = sock.detach()
        argv = [os.environ["FAKE_PEER_SHIM"], "--serve-fd", str(fd)]
        subprocess.Popen(argv, pass_fds=[fd], stdin=subprocess.DEVNULL)
        os.close(fd)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        request = f"{self.command} {self.path}"
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(text) if text else {}
        with open(os.environ["FAKE_PEER_LOG"], "a") as log:
            log.write(json.dumps([request, body]) + "\n")
        try:
            needed, allowed = FIELDS.get(request, ({"no such path"}, set()))
            if not needed <= set(body) <= needed | allowed:
                raise Refused(f"{request}: fields {sorted(body)}")
            (VM.firecracker if FIRECRACKER else VM.cloud_hypervisor)(request, body)
            status, answer = 204, b""
        except (Refused, OSError, KeyError) as error:
            status, answer = 400, json.dumps({"fault_message": str(error)}).encode()
        self.send_response(status)
        if answer:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_PATCH = _serve

    def address_string(self) -> str:
        return "unix"


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print(os.environ.get("FAKE_PEER_VERSION", f"{NAME} v1.16.1"))
        return 0
    if FIRECRACKER:
        option, path, *rest = sys.argv[1:]
        good = option == "--api-sock" and rest[:1] == ["--id"] and len(rest) == 2
    else:
        option, path = sys.argv[1:]
        good = option == "--api-socket" and path.startswith("path=")
        path = path.removeprefix("path=")
    if not good:
        print(f"{NAME}: bad arguments: {sys.argv[1:]}", file=sys.stderr)
        return 2
    ThreadingUnixStreamServer(path, Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
