#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for thaw-vmm, so that the thaw command can be tested without KVM.

It speaks the control channel of vmm/util/ctl.h, runs commands by the real thaw-shim
(--serve-fd) on this machine, and answers SHIM_CHECKPOINT itself. $THAW_FAKE says how it is to
misbehave; $THAW_FAKE_LOG is a file that gets its command line as JSON.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import fake_snapshot

MSG = struct.Struct("<IIIIiIQ5Q192s")
CONNECT, STOP, ACCEPT, RUNNING, RESUMED, READY, SNAPSHOT, EXIT = 1, 2, 64, 65, 66, 67, 68, 69
START, FORK, WAITING, FORKED = 3, 4, 70, 71
SNAPSHOT_REQ, OWNED, ARMED = 5, 72, 73
STOPPED, SNAPSHOT_WRITTEN, OWN_ERROR = 2, 3, 4
SHIM_EXEC, SHIM_CHECKPOINT, SHIM_OK = 1, 5, 70
SHIM_CHECKPOINT_LIVE, SHIM_SHUTDOWN = 8, 9
FIRST_PORT = 1025
SHIM = Path(__file__).resolve().parents[2] / "build/release/thaw-shim"


def message(
    kind: int, reason: int = 0, error: int = 0, text: str = "", upto: int = 5, port: int = 0
) -> bytes:
    start = time.monotonic_ns() - 5_000_000
    clocks = [start + i * 1_000_000 if i < upto else 0 for i in range(5)]
    return MSG.pack(1, kind, port, reason, error, 0, 7, *clocks, text.encode())


def first_type(stream: socket.socket) -> int | None:
    """Type of the first frame, left in the stream; None if the stream ends before."""
    while True:
        head = stream.recv(8, socket.MSG_PEEK)
        if len(head) == 8:
            return head[4]
        if not head:
            return None
        time.sleep(0.001)


class FakeVmm:
    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.fake = os.environ.get("THAW_FAKE", "")
        self.ctl = socket.socket(fileno=3)
        self.ctl.setblocking(True)
        self.words = b""
        self.shims: list[subprocess.Popen[bytes]] = []
        self.request: tuple[int, str, int] | None = None

    def option(self, name: str) -> str | None:
        return self.argv[self.argv.index(name) + 1] if name in self.argv else None

    def snapshot(self, stream: socket.socket) -> None:
        stream.recv(8)
        stream.sendall(struct.pack("<IBBH", 0, SHIM_OK, 1, 0))
        while stream.recv(100):
            pass
        if self.fake == "snapshot-fails":
            self.ctl.send(message(SNAPSHOT, error=-28, text="/x/memory: No space left on device"))
            return
        folder = Path(self.option("--snapshot") or "")
        if "--replace" in self.argv:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        fake_snapshot.write(folder, self.option("--name") or "")
        self.ctl.send(message(SNAPSHOT))
        self.ctl.send(message(EXIT, reason=SNAPSHOT_WRITTEN))
        sys.exit(0)

    def connect(self, fd: int) -> None:
        stream = socket.socket(fileno=fd)
        if self.fake == "refuse":
            return
        if self.fake == "die-at-connect":
            os.kill(os.getpid(), 9)
        if self.fake == "crash":
            self.ctl.send(message(EXIT, reason=1, text="triple fault on vCPU 0"))
            sys.exit(3)
        if self.fake == "garbage":
            stream.sendall(b"\xff" * 64)
            stream.recv(1 << 20)
            return
        kind = first_type(stream)
        if kind == SHIM_CHECKPOINT:
            self.snapshot(stream)
            return
        if kind == SHIM_CHECKPOINT_LIVE:
            self.live_snapshot(stream)
            return
        argv = [str(SHIM), "--serve-fd", str(stream.fileno())]
        self.shims.append(subprocess.Popen(argv, pass_fds=[stream.fileno()]))

    def stop(self) -> None:
        hot_fd = self.option("--hot-fd")
        self.ctl.send(message(EXIT, reason=STOPPED))
        if hot_fd is not None:
            if self.fake == "hot-fails":
                sys.exit(1)
            os.write(int(hot_fd), self.hot_set())
        sys.exit(0)

    def hot_set(self) -> bytes:
        """Pages 0-9 are read by every command; what else is touched depends on the command."""
        if self.fake == "hot-garbage":
            return b"hot pages"
        folder, words = Path(self.argv[2]), self.words
        runs = [(0, 10, fake_snapshot.READ)]
        runs += [(0x100000 + 0x1000 * len(words), 5, fake_snapshot.WRITE)]
        if self.fake == "hot-outside":
            runs += [(fake_snapshot.RAM_BYTES, 1, fake_snapshot.READ)]
        return fake_snapshot.hot(folder, runs)

    def first_request(self, fd: int = 4) -> None:
        """What the guest's shim does with the mailbox: start the command, call the host."""
        payload = Path(f"/proc/self/fd/{fd}").read_bytes()
        self.words = payload
        ours, theirs = socket.socketpair()
        theirs.sendall(struct.pack("<IBBH", len(payload), SHIM_EXEC, 1, 0) + payload)
        data = message(ACCEPT, port=FIRST_PORT)
        fds = array.array("i", [theirs.fileno()])
        self.ctl.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        theirs.close()
        self.connect(ours.detach())

    def receive(self, sock: socket.socket) -> tuple[bytes, list[int]]:
        data, ancillary, _flags, _addr = sock.recvmsg(MSG.size, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for _level, _type, raw in ancillary:
            fds.frombytes(raw)
        return data, list(fds)

    def listen(self, option: str, kind: int) -> socket.socket | None:
        """As usock_listen(): the path appears when it listens."""
        path = self.option(option)
        if path is None:
            return None
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.bind(path + "~")
        sock.listen(16)
        os.link(path + "~", path)
        Path(path + "~").unlink()
        return sock

    def lock_folder(self) -> None:
        """A clone holds what it runs from."""
        self.folder_fd = os.open(self.argv[2], os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def live_snapshot(self, stream: socket.socket) -> None:
        stream.recv(8)
        stream.sendall(struct.pack("<IBBH", 0, SHIM_OK, 1, 0))
        while stream.recv(100):
            pass
        if self.request is None:
            return  # written before: see owner()
        (folder_fd, name, flags), self.request = self.request, None
        if self.fake == "snapshot-fails":
            text = f"{name}/memory: No space left on device"
            self.ctl.send(message(SNAPSHOT, error=-28, text=text))
            return
        if self.fake == "die-at-snapshot":
            os._exit(1)
        folder = Path(f"/proc/self/fd/{folder_fd}/{name}")
        folder.mkdir()
        fake_snapshot.write(folder, name)
        os.close(folder_fd)
        told = list(MSG.unpack(message(SNAPSHOT)))
        told[5] = 1500
        self.ctl.send(MSG.pack(*told))
        if flags & 1:
            self.ctl.send(message(EXIT, reason=SNAPSHOT_WRITTEN))
            os._exit(0)

    def vsock_client(self, client: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            line += client.recv(1)
        client.sendall(b"OK 1073741824\n")
        kind = first_type(client)
        if self.fake == "deaf":
            client.close()
            return
        if kind == SHIM_SHUTDOWN:
            client.recv(12)
            client.sendall(struct.pack("<IBBH", 0, SHIM_OK, 1, 0))
            os._exit(0)
        if kind is not None:
            self.connect(client.detach())

    def eager_guest(self, name: str, folder_fd: int) -> None:
        """It makes its call before it is asked to; the owner finds all of it in the channel."""
        self.request = None
        folder = Path(f"/proc/self/fd/{folder_fd}/{name}")
        folder.mkdir()
        fake_snapshot.write(folder, name)
        os.close(folder_fd)
        peer = self.ctl.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("iII", peer)[0]
        os.kill(pid, signal.SIGSTOP)
        self.ctl.send(message(ARMED))
        self.ctl.send(message(SNAPSHOT))
        os.kill(pid, signal.SIGCONT)

    def owner(self) -> bool:
        """One message. False: it has left."""
        data, fds = self.receive(self.ctl)
        if not data:
            return False
        kind = MSG.unpack(data)[1]
        if kind == CONNECT:
            self.connect(fds[-1])
        elif kind == STOP:
            self.stop()
        elif kind == SNAPSHOT_REQ:
            name = MSG.unpack(data)[-1].rstrip(b"\0").decode()
            error = -16 if self.request or self.fake == "not-armed" else 0
            self.request = self.request or (fds[0], name, MSG.unpack(data)[2])
            if self.fake == "eager-guest":
                self.eager_guest(name, fds[0])
                return True
            self.ctl.send(message(ARMED, error=error))
        return True

    def serve_owners(self, owners: socket.socket, streams: socket.socket | None) -> None:
        """Owners come and go, one at a time."""
        owned = True
        while True:
            watched = [self.ctl if owned else owners, *([streams] if streams else [])]
            ready, _, _ = select.select(watched, [], [])
            if streams in ready and streams:
                self.vsock_client(streams.accept()[0])
            elif owned:
                owned = self.owner()
                if not owned:
                    self.request = None
            elif owners in ready:
                self.ctl = owners.accept()[0]
                owned = True
                if self.fake != "no-word":
                    self.ctl.send(message(OWNED, port=0 if self.fake == "not-resumed" else 1))

    def wait_for_start(self) -> None:
        """A shell: everything is ready, the owner says go."""
        self.ctl.send(message(WAITING))
        while True:
            data, fds = self.receive(self.ctl)
            if not data:
                os._exit(0)
            if MSG.unpack(data)[1] == START:
                break
        if self.fake == "start-dies":
            os._exit(1)
        if "THAW_FAKE_LOG" in os.environ:
            hostname = MSG.unpack(data)[-1].rstrip(b"\0").decode()
            Path(os.environ["THAW_FAKE_LOG"]).write_text(json.dumps({"hostname": hostname}))
        self.ctl.send(message(RUNNING, upto=4))
        self.ctl.send(message(RESUMED))
        if fds:
            self.first_request(fds[0])
        self.serve()

    def zygote(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        zygote = self.ctl
        zygote.send(message(READY))
        while True:
            data, fds = self.receive(zygote)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                zygote.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.ctl = socket.socket(fileno=fds[0])
                self.ctl.setblocking(True)
                if self.fake != "shell-fails":
                    self.wait_for_start()
                os._exit(1)
            os.close(fds[0])
            pidfd = os.pidfd_open(pid)
            answer = list(MSG.unpack(message(FORKED, port=pid)))
            answer[6] = MSG.unpack(data)[6]
            rights = array.array("i", [pidfd])
            zygote.sendmsg([MSG.pack(*answer)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            os.close(pidfd)

    def run(self) -> None:
        if "--zygote-fd" in self.argv:
            self.zygote()
            return
        # The clones that record the hot set are not what the tests ask about.
        if "THAW_FAKE_LOG" in os.environ and "--hot-fd" not in self.argv:
            # The folder's own fd is in the list too, and closed by now.
            links = {link.name: link for link in Path("/proc/self/fd").iterdir()}
            report = {
                "argv": self.argv,
                "env": dict(os.environ),
                "fds": {
                    fd: str(link.readlink()) for fd, link in links.items() if link.is_symlink()
                },
                "sid": os.getsid(0) == os.getpid(),
            }
            Path(os.environ["THAW_FAKE_LOG"]).write_text(json.dumps(report))
        if self.fake == "usage":
            print("thaw-vmm: a word on stderr", file=sys.stderr)
            sys.exit(2)
        if self.fake == "bad-state":
            print("thaw-vmm: error: T/state: digest mismatch", file=sys.stderr)
            self.ctl.send(message(EXIT, reason=OWN_ERROR, error=-74, text="set-up failed"))
            sys.exit(1)
        owners = self.listen("--ctl-listen", socket.SOCK_SEQPACKET)
        if owners:
            self.lock_folder()
            if "THAW_FAKE_ONCE" in os.environ:
                # One of several, and no more.
                with contextlib.suppress(FileNotFoundError):
                    Path(os.environ["THAW_FAKE_ONCE"]).unlink()
                    print("thaw-vmm: error: a word of its own", file=sys.stderr)
                    sys.exit(1)
            streams = self.listen("--vsock", socket.SOCK_STREAM)
            self.ctl.send(message(RUNNING, upto=4))
            self.ctl.send(message(RESUMED))
            self.serve_owners(owners, streams)
        if self.fake != "hang":
            self.ctl.send(message(RUNNING, upto=4, text=os.environ.get("THAW_FAKE_NOTE", "")))
            self.ctl.send(message(RESUMED if self.argv[1] == "restore" else READY))
            if "--request-fd" in self.argv:
                self.first_request()
        self.serve()

    def serve(self) -> None:
        while True:
            select.select([self.ctl], [], [])
            data, fds = self.receive(self.ctl)
            if not data:
                break
            kind = MSG.unpack(data)[1]
            if kind == CONNECT and self.fake != "hang":
                self.connect(fds[-1])
            if kind == STOP:
                self.stop()
        for shim in self.shims:
            shim.kill()


if __name__ == "__main__":
    FakeVmm(sys.argv).run()
