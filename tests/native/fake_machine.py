#!/usr/bin/env -S python3 -S
# SPDX-License-Identifier: Apache-2.0
# Started a hundred times by a test, and pathlib is late to load:
# ruff: noqa: PTH102, PTH108, PTH110, PTH112, PTH119, PTH120, SIM117
"""A stand-in for the thaw-vmm of a sandbox that stays, so that thawd can be tested without KVM.

It speaks the control channel of vmm/util/ctl.h and serves the vsock socket as thaw-vmm does; behind
it stands a real thaw-shim of its own, in a pid namespace that ends with it. Checkpoint and
shutdown, which need a guest's kernel, it answers itself. A machine that is restored from a snapshot
has the same files (the host's) and no processes: what goes on inside a real guest does not here.

Other command lines (boot, zygotes apart) are fake_vmm.py's. $THAW_FAKE_FILE names a file whose word
says how machines are to misbehave; it is read when one starts.

  start-dies      ends before the guest runs, with a word on stderr
  start-hangs     the guest never runs
  snapshot-fails  no space for it
  snapshot-dies   ends instead of writing it
  deaf            the guest takes no streams
  no-shutdown     the guest does not do what SHIM_SHUTDOWN asks

While $THAW_STATE/silent is there, it neither takes streams nor refuses them.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import functools
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

HERE = os.path.dirname(os.path.realpath(__file__))
SHIM = os.environ.get("THAW_FAKE_SHIM", f"{HERE}/../../build/release/thaw-shim")
FILES = os.environ.get("THAW_FILES", f"{HERE}/../../build/release/thaw-files")

MSG = struct.Struct("<IIIIiIQ5Q192s")
CONNECT, STOP, START, FORK, SNAPSHOT_REQ, DEADLINE = 1, 2, 3, 4, 5, 6
ACCEPT, RUNNING, RESUMED, READY, SNAPSHOT, EXIT = 64, 65, 66, 67, 68, 69
WAITING, FORKED, OWNED, ARMED = 70, 71, 72, 73
POWEROFF, STOPPED, SNAPSHOT_WRITTEN, TIME_OVER = 0, 2, 3, 5
SHIM_EXEC, SHIM_CHECKPOINT, SHIM_POWEROFF, SHIM_CHECKPOINT_LIVE, SHIM_SHUTDOWN = 1, 5, 7, 8, 9
SILENT = os.environ.get("THAW_STATE", "/nothing") + "/silent"
OK_FRAME = struct.pack("<IBBH", 0, 70, 1, 0)
SHIM_PORT, FIRST_PORT = 1024, 1025
BUFFER_BYTES = 256 << 10
SHIM_WAIT_S = 20
TICK_S = 0.02


def message(
    kind: int, reason: int = 0, error: int = 0, text: str = "", upto: int = 5, port: int = 0
) -> bytes:
    start = time.monotonic_ns() - 5_000_000
    clocks = [start + i * 1_000_000 if i < upto else 0 for i in range(5)]
    pause_us = 1500 if kind == SNAPSHOT else 0
    return MSG.pack(1, kind, port, reason, error, pause_us, 7, *clocks, text.encode())


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    try:
        data, ancillary, _flags, _addr = sock.recvmsg(MSG.size, socket.CMSG_SPACE(4))
    except ConnectionResetError:
        return b"", []
    fds = array.array("i")
    for _level, _type, raw in ancillary:
        fds.frombytes(raw)
    return data, list(fds)


def children(pid: int) -> list[int]:
    """All below @pid, at this moment."""
    found: list[int] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        for word in file.read().split():
            found += [int(word), *children(int(word))]
    return found


class Bridge:
    """Bytes between two sockets, half-closes included, with bounded buffers."""

    def __init__(self, machine: Machine, one: socket.socket, two: socket.socket) -> None:
        self.machine = machine
        self.ends = (one, two)
        self.buffers = [bytearray(), bytearray()]  # read from end i, for the other one
        self.eof = [False, False]
        self.done = [False, False]  # the other end was told of it
        for i, end in enumerate(self.ends):
            end.setblocking(False)
            machine.watch(end, functools.partial(self.events, i), 0)
        self.rewatch()

    def rewatch(self) -> None:
        for i, end in enumerate(self.ends):
            events = 0
            if not self.eof[i] and len(self.buffers[i]) < BUFFER_BYTES:
                events |= select.EPOLLIN
            if self.buffers[1 - i]:
                events |= select.EPOLLOUT
            self.machine.change(end, events)

    def take(self, i: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while not self.eof[i] and len(self.buffers[i]) < BUFFER_BYTES:
                try:
                    data = self.ends[i].recv(65536)
                except ConnectionResetError:
                    data = b""
                self.eof[i] = not data
                self.buffers[i] += data

    def move(self, i: int) -> None:
        sink = self.ends[1 - i]
        self.take(i)
        with contextlib.suppress(BlockingIOError):
            while self.buffers[i]:
                try:
                    del self.buffers[i][: sink.send(self.buffers[i])]
                except (BrokenPipeError, ConnectionResetError):
                    # Nobody takes it any more; what that end said is still to be passed on.
                    self.buffers[i].clear()
        if self.eof[i] and not self.buffers[i] and not self.done[i]:
            self.done[i] = True
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def events(self, i: int, events: int) -> None:
        try:
            self.move(0)
            self.move(1)
            # An end that is gone, and all it said is passed on: epoll tells of it for ever.
            if all(self.done) or (events & select.EPOLLHUP and self.done[i]):
                raise ConnectionResetError
            self.rewatch()
        except OSError:
            for end in self.ends:
                self.machine.forget(end)
                end.close()


class Machine:
    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], None]] = {}
        self.owners: socket.socket | None = None
        self.streams: socket.socket | None = None
        self.owner: socket.socket | None = None
        self.shim_pid = 0
        self.shim_path = ""
        self.request: tuple[int, str, int] | None = None
        self.ends_at = 0.0  # --hard-timeout
        self.kill_at = 0.0  # of a shutdown
        self.kept: list[socket.socket] = []
        self.fake = ""
        with contextlib.suppress(KeyError, FileNotFoundError):
            with open(os.environ["THAW_FAKE_FILE"]) as file:
                self.fake = file.read().strip()

    # The event loop.

    def watch(self, sock: socket.socket, handler: Callable[[int], None], events: int) -> None:
        self.handlers[sock.fileno()] = handler
        self.epoll.register(sock, events)

    def change(self, sock: socket.socket, events: int) -> None:
        self.epoll.modify(sock, events)

    def forget(self, sock: socket.socket) -> None:
        if self.handlers.pop(sock.fileno(), None):
            self.epoll.unregister(sock)

    def loop(self) -> None:
        while True:
            due = self.kill_at or self.ends_at
            timeout = None if not due else max(0.0, due - time.monotonic())
            if self.kill_at:
                timeout = TICK_S
            for fd, events in self.epoll.poll(timeout):
                handler = self.handlers.get(fd)
                if handler:
                    handler(events)
            self.tick()

    def tick(self) -> None:
        now = time.monotonic()
        if self.ends_at and now >= self.ends_at:
            self.end(TIME_OVER, "its hard time-out is over")
        if not self.kill_at:
            return
        left = self.processes()
        if left and now >= self.kill_at:
            self.signal_all(signal.SIGKILL)
        elif not left:
            self.kill_at = 0.0
            self.end(POWEROFF)

    def set_deadline(self, from_now_ms: int) -> None:
        self.ends_at = time.monotonic() + from_now_ms / 1000 if from_now_ms else 0.0

    def end(self, reason: int, text: str = "") -> None:
        self.tell(message(EXIT, reason=reason, text=text))
        os._exit(0)

    def tell(self, data: bytes) -> None:
        if self.owner:
            with contextlib.suppress(OSError):
                self.owner.send(data)

    # The guest.

    def start_shim(self) -> None:
        folder = ""
        with contextlib.suppress(AttributeError, OSError):
            folder = os.path.dirname(self.streams.getsockname())  # type: ignore[union-attr]
        if not folder.startswith("/") or folder.startswith("/proc/") or not os.path.isdir(folder):
            folder = os.environ.get("THAW_STATE", "/tmp") + "/scratch"
        self.shim_path = f"{folder}/shim" if "/run/" in folder else f"{folder}/shim-{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.shim_path)
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork"]
        # The shell is the namespace's first process: as that one, the shim would be an init.
        # It sees our end by fd 3, also one that comes before pdeathsig is set.
        script = '"$@" 3<&- & pid=$!; (read _ <&3; kill -9 $pid) & exec 3<&-; wait $pid'
        words += ["--kill-child=KILL", "--mount-proc", "sh", "-c", script, "sh"]
        words += [SHIM, "--listen-unix", self.shim_path]
        words += ["--files", FILES] if os.path.exists(FILES) else []
        words += self.shim_cgroup()
        null = os.open("/dev/null", os.O_RDWR)
        ours, self.alive_fd = os.pipe()
        ours = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 10)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        actions += [(os.POSIX_SPAWN_DUP2, ours, 3)]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        self.shim_pid = os.posix_spawnp("setpriv", words, env, file_actions=actions)
        os.close(null)
        os.close(ours)
        deadline = time.monotonic() + SHIM_WAIT_S
        while True:
            with contextlib.suppress(OSError):
                self.connect_shim().close()
                return
            if time.monotonic() > deadline or os.waitpid(self.shim_pid, os.WNOHANG)[0]:
                print("fake_machine: error: the shim does not listen", file=sys.stderr)
                os._exit(1)
            time.sleep(0.002)

    def shim_cgroup(self) -> list[str]:
        """Its own, where there is cgroup v2; daemon.py removes it by the state folder's name."""
        with open("/proc/mounts") as mounts:
            roots = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
        tag = os.path.basename(os.path.dirname(os.environ.get("THAW_STATE", "")))
        if not roots or not tag.startswith("thawd."):
            return []
        folder = f"{roots[0]}/{tag}-{os.getpid()}"
        try:
            os.mkdir(folder)
        except OSError:
            return []
        return ["--cgroup", folder]

    def connect_shim(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(self.shim_path)
        except OSError:
            sock.close()
            raise
        return sock

    def processes(self) -> list[int]:
        """What runs in the guest: below setpriv/unshare, the shell, the shim."""
        return children(self.shim_pid)[2:]

    def signal_all(self, signo: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signo)

    # Streams to it.

    def accept_stream(self, _events: int) -> None:
        assert self.streams
        try:
            client = self.streams.accept()[0]
        except BlockingIOError:
            return
        client.setblocking(False)
        line = bytearray()

        def more(events: int) -> None:
            try:
                while not line.endswith(b"\n"):
                    byte = client.recv(1)
                    if not byte or len(line) > 32:
                        raise ConnectionResetError
                    line.extend(byte)
                if line != b"CONNECT %d\n" % SHIM_PORT or self.fake == "deaf":
                    raise ConnectionResetError
                if os.path.exists(SILENT):
                    self.forget(client)
                    self.kept.append(client)
                    return
                client.sendall(b"OK 1073741824\n")
            except BlockingIOError:
                return
            except OSError:
                self.forget(client)
                client.close()
                return
            self.forget(client)
            self.new_stream(client)

        self.watch(client, more, select.EPOLLIN)

    def new_stream(self, client: socket.socket) -> None:
        """Its first frame says what it is for, and stays in it for the shim."""
        client.setblocking(False)

        def more(events: int) -> None:
            try:
                head = client.recv(8, socket.MSG_PEEK)
            except BlockingIOError:
                return
            except OSError:
                head = b""
            if 0 < len(head) < 8 and not events & (select.EPOLLHUP | select.EPOLLRDHUP):
                return
            self.forget(client)
            kind = head[4] if len(head) == 8 else -1
            if kind == SHIM_CHECKPOINT_LIVE:
                self.checkpoint(client)
            elif kind in (SHIM_SHUTDOWN, SHIM_POWEROFF) and self.fake != "no-shutdown":
                self.shutdown(client, kind)
            elif kind in (SHIM_SHUTDOWN, SHIM_POWEROFF):
                client.recv(12)
                client.send(OK_FRAME)
                client.close()
            elif head:
                try:
                    Bridge(self, client, self.connect_shim())
                except OSError:
                    client.close()
            else:
                client.close()

        self.watch(client, more, select.EPOLLIN | select.EPOLLRDHUP)

    def shutdown(self, client: socket.socket, kind: int) -> None:
        data = client.recv(12)
        grace_ms = struct.unpack("<I", data[8:])[0] if kind == SHIM_SHUTDOWN else 0
        with contextlib.suppress(OSError):
            client.send(OK_FRAME)
        client.close()
        self.kill_at = time.monotonic() + max(grace_ms, 1) / 1000
        if grace_ms:
            self.signal_all(signal.SIGTERM)

    def checkpoint(self, client: socket.socket) -> None:
        client.recv(8)
        client.send(OK_FRAME)

        def more(_events: int) -> None:
            try:
                if client.recv(100):
                    return
            except BlockingIOError:
                return
            except OSError:
                pass
            self.forget(client)
            client.close()
            if self.request:
                (folder_fd, name, flags), self.request = self.request, None
                self.write_snapshot(folder_fd, name, flags)

        self.watch(client, more, select.EPOLLIN)

    def write_snapshot(self, folder_fd: int, name: str, flags: int) -> None:
        if self.fake == "snapshot-dies":
            os._exit(1)
        if self.fake == "snapshot-fails":
            text = f"{name}/memory: No space left on device"
            self.tell(message(SNAPSHOT, error=-28, text=text))
            os.close(folder_fd)
            return
        from pathlib import Path

        sys.path.insert(0, HERE)
        import fake_snapshot

        temp = Path(f"/proc/self/fd/{folder_fd}/.{name}.tmp-{os.getpid()}")
        temp.mkdir()
        fake_snapshot.write(temp, name)
        temp.rename(f"/proc/self/fd/{folder_fd}/{name}")
        os.close(folder_fd)
        self.tell(message(SNAPSHOT))
        if flags & 1:
            self.end(SNAPSHOT_WRITTEN)

    # Its owners.

    def owner_left(self) -> None:
        assert self.owner
        self.forget(self.owner)
        self.owner.close()
        self.owner = None
        if self.request:
            os.close(self.request[0])
            self.request = None
        if self.owners is None:
            os._exit(0)
        self.watch(self.owners, self.accept_owner, select.EPOLLIN)

    def set_owner(self, owner: socket.socket) -> None:
        self.owner = owner
        owner.setblocking(True)
        self.watch(owner, self.owner_says, select.EPOLLIN)

    def accept_owner(self, _events: int) -> None:
        """One at a time: the others wait in the queue."""
        assert self.owners
        try:
            owner = self.owners.accept()[0]
        except BlockingIOError:
            return
        self.forget(self.owners)
        self.set_owner(owner)
        self.tell(message(OWNED, port=1))

    def owner_says(self, _events: int) -> None:
        assert self.owner
        data, fds = receive(self.owner)
        if not data:
            self.owner_left()
            return
        fields = MSG.unpack(data)
        kind, port = fields[1], fields[2]
        if kind == CONNECT and port == SHIM_PORT:
            self.new_stream(socket.socket(fileno=fds[0]))
        elif kind == CONNECT:
            os.close(fds[0])
        elif kind == STOP:
            self.end(STOPPED)
        elif kind == DEADLINE:
            self.set_deadline(fields[6])
        elif kind == SNAPSHOT_REQ:
            error = -16 if self.request else 0
            if not error:
                self.request = (fds[0], fields[-1].rstrip(b"\0").decode(), port)
            self.tell(message(ARMED, error=error))

    # Its start.

    def option(self, name: str) -> str | None:
        return self.argv[self.argv.index(name) + 1] if name in self.argv else None

    def listener(self, name: str, kind: int) -> socket.socket | None:
        """As usock_listen(): the path appears when it listens."""
        path = self.option(name)
        if path is None:
            return None
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.bind(path + "~")
        sock.listen(64)
        os.link(path + "~", path)
        os.unlink(path + "~")
        sock.setblocking(False)
        return sock

    def lock_folder(self) -> None:
        """A clone holds what it runs from."""
        folder = self.option("--snapshot-fd")
        fd = int(folder) if folder else os.open(self.argv[2], os.O_RDONLY | os.O_DIRECTORY)
        os.set_inheritable(fd, False)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def first_request(self, fd: int) -> None:
        """What the guest's shim does with the mailbox: start the command, call the host."""
        payload = os.pread(fd, 4 << 20, 0)
        os.close(fd)
        inner, outer = socket.socketpair()
        shim = self.connect_shim()
        shim.sendall(struct.pack("<IBBH", len(payload), SHIM_EXEC, 1, 0) + payload)
        rights = array.array("i", [outer.fileno()])
        assert self.owner
        self.owner.sendmsg(
            [message(ACCEPT, port=FIRST_PORT)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        )
        outer.close()
        Bridge(self, inner, shim)

    def go(self, request_fd: int = -1) -> None:
        if self.fake == "start-dies":
            print("thaw-vmm: error: a word of its own", file=sys.stderr)
            os._exit(1)
        if hard := self.option("--hard-timeout"):
            self.set_deadline(int(hard))
        self.tell(message(RUNNING, upto=4))
        if self.fake == "start-hangs":
            self.loop()
        self.start_shim()
        self.tell(message(RESUMED))
        if request_fd >= 0:
            self.first_request(request_fd)
        if self.streams:
            self.watch(self.streams, self.accept_stream, select.EPOLLIN)
        self.loop()

    def wait_for_start(self) -> None:
        """A shell of a pool: everything is ready, the owner says go."""
        assert self.owner
        self.tell(message(WAITING))
        while True:
            data, fds = receive(self.owner)
            if not data:
                os._exit(0)
            if MSG.unpack(data)[1] == START:
                self.set_deadline(MSG.unpack(data)[6])
                break
        self.set_owner(self.owner)
        self.go(fds[0] if fds else -1)

    def zygote(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        zygote = socket.socket(fileno=int(self.option("--zygote-fd") or ""))
        zygote.setblocking(True)
        zygote.send(message(READY))
        self.lock_folder()
        while True:
            data, fds = receive(zygote)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                zygote.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.epoll = select.epoll()
                self.owner = socket.socket(fileno=fds[0])
                self.owner.setblocking(True)
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
        self.lock_folder()
        self.owners = self.listener("--ctl-listen", socket.SOCK_SEQPACKET)
        self.streams = self.listener("--vsock", socket.SOCK_STREAM)
        owner = socket.socket(fileno=int(self.option("--ctl-fd") or ""))
        if "--wait" in self.argv:
            self.owner = owner
            owner.setblocking(True)
            self.wait_for_start()
        self.set_owner(owner)
        self.go()


def main() -> None:
    stays = {"--ctl-listen", "--zygote-fd"}
    if sys.argv[1:2] != ["restore"] or not stays & set(sys.argv):
        os.execv(f"{HERE}/fake_vmm.py", [f"{HERE}/fake_vmm.py", *sys.argv[1:]])
    Machine(sys.argv).run()


if __name__ == "__main__":
    main()
