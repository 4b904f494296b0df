# SPDX-License-Identifier: Apache-2.0
"""thaw-shim over a Unix socket: the exec matrix without a guest.

tests/vm/test_exec.py is the one with a guest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "vm"),
]

import shim  # noqa: E402
import shim_server  # noqa: E402
from shim_server import (  # noqa: E402  # noqa: E402
    CWD,
    EXEC,
    REQUEST,
    SHIM,
    WAIT_S,
    Server,
    alive,
    code,
    cpu_ticks,
    eventually,
    read_until,
)

pytestmark = shim_server.needs_shim
server = shim_server.server


def test_streams_and_codes(server: Server) -> None:
    result = server.sh("echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert code(result) == 7 and result.drained == 1 and result.pid
    for value in (0, 1, 125, 126, 127, 255):
        assert code(server.sh(f"exit {value}")) == value


def test_binary_and_arguments_pass_unchanged(server: Server) -> None:
    every = bytes(range(256)) * 300
    result = server.run("cat", stdin=every)
    assert result.stdout == every and code(result) == 0
    args = [b"%", b"", b"a b", b"*", b"$HOME", b"\n", bytes(range(1, 256))]
    result = server.run("printf", b"%s\\0", *args)
    assert bytes(result.stdout).split(b"\0")[:-1] == args


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_told_apart_from_codes(server: Server, number: signal.Signals) -> None:
    with server.start(["sleep", "1000"]) as sock:
        kind, payload = next(shim.frames(sock))
        assert kind == shim.STARTED
        assert alive(struct.unpack("<I", payload)[0])
        sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", number)))
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, number)


def test_signal_sent_with_the_request(server: Server) -> None:
    with server.start(["sleep", "1000"]) as sock:
        sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGKILL)))
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)


def test_signal_can_be_handled_and_is_for_the_command_alone(server: Server) -> None:
    script = "trap 'echo got; exit 3' TERM; sleep 0.2 & echo ready; while :; do wait; done"
    with server.start(["sh", "-c", script]) as sock:
        read_until(sock, b"ready")
        sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGTERM)))
        result = shim.collect(sock)
    assert result.stdout == b"got\n" and code(result) == 3


def test_signals_start_at_their_defaults(server: Server) -> None:
    status = bytes(server.sh("cat /proc/self/status").stdout).decode()
    for name in ("SigBlk", "SigIgn", "SigCgt"):
        value = re.search(rf"{name}:\s+(\w+)", status)
        assert value and int(value[1], 16) == 0, status


def test_spawn_failures_are_no_exit_codes(server: Server, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("data")
    script = tmp_path / "script"
    script.write_text("no magic")
    script.chmod(0o755)
    ghost = tmp_path / "ghost"
    ghost.write_text("#!/no/such/interpreter\n")
    ghost.chmod(0o755)
    cases: list[tuple[str, int]] = [
        ("/no/such/file", errno.ENOENT),
        ("no-such-command", errno.ENOENT),
        (str(plain), errno.EACCES),
        (str(tmp_path), errno.EACCES),
        (str(script), errno.ENOEXEC),
        (str(ghost), errno.ENOENT),
        ("a" * 5000, errno.ENOENT),
        ("/" + "a" * 5000, errno.ENAMETOOLONG),
        ("/etc/passwd/x", errno.ENOTDIR),
    ]
    for name, number in cases:
        result = server.run(name, "x")
        assert result.error is not None, name
        assert result.error[:2] == (EXEC, number), (name, result.error)
        assert os.strerror(number) in result.error[2]
        assert result.kind is None and result.pid is None
    result = server.run("true", cwd="/no/such/dir")
    assert result.error is not None and result.error[:2] == (CWD, errno.ENOENT)
    assert "/no/such/dir" in result.error[2]


def test_path_lookup_remembers_what_may_not_be_executed(server: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (first / "tool").write_text("#!/bin/sh\n")
    path = f"/no/such:{first}:{second}"
    result = server.run("tool", env={"PATH": path})
    assert result.error is not None and result.error[:2] == (EXEC, errno.EACCES)
    (second / "tool").write_text("#!/bin/sh\necho second\n")
    (second / "tool").chmod(0o755)
    assert server.run("tool", env={"PATH": path}).stdout == b"second\n"
    # An empty element is the working directory; so is an empty PATH.
    assert server.run("tool", env={"PATH": "/no/such:"}, cwd=str(second)).stdout == b"second\n"
    assert server.run("tool", env={"PATH": ""}, cwd=str(second)).stdout == b"second\n"


def test_environment_is_the_given_one(server: Server) -> None:
    result = server.run("env", "-0", env={"A": "1 = 2\n", "B": ""})
    got = bytes(result.stdout).split(b"\0")[:-1]
    default = b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert got == [b"A=1 = 2\n", b"B=", default]
    result = server.run("/usr/bin/env", env={"PATH": "/x"})
    assert result.stdout == b"PATH=/x\n"


def test_cwd_and_umask_and_session(server: Server, tmp_path: Path) -> None:
    assert server.run("pwd", cwd=str(tmp_path)).stdout == f"{tmp_path}\n".encode()
    assert server.run("pwd").stdout == b"/\n"
    assert server.sh("umask").stdout == b"0022\n"
    result = server.sh("cut -d' ' -f1,5,6,7 /proc/$$/stat")
    pid, group, session, tty = map(int, bytes(result.stdout).split())
    assert pid == group == session == result.pid and tty == 0


def test_uid_gid_and_no_groups(server: Server, tmp_path: Path) -> None:
    result = server.sh("id -u; id -g; id -G; grep CapEff /proc/self/status", uid=1234, gid=2345)
    assert bytes(result.stdout).split() == [b"1234", b"2345", b"2345", b"CapEff:", b"0" * 16]
    assert server.sh("id -G").stdout == b"0\n"
    # The working directory is entered with the user's rights.
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    result = server.run("true", uid=1234, gid=2345, cwd=str(locked))
    assert result.error is not None and result.error[:2] == (CWD, errno.EACCES)


def test_no_fd_leaks_into_the_command(server: Server) -> None:
    with server.start(["sleep", "5"]):
        result = server.sh("ls -l /proc/self/fd")
    fds = [line.split()[-3] for line in bytes(result.stdout).decode().splitlines()[1:]]
    assert fds == ["0", "1", "2", "3"]  # 3 is ls's own
    assert b"0 -> /dev/null" in result.stdout


def test_stdin_without_the_flag_is_dev_null(server: Server) -> None:
    assert server.run("cat").stdout == b""


def test_stdin_eof_and_half_close(server: Server) -> None:
    assert server.run("wc", "-c", stdin=b"").stdout == b"0\n"
    with server.start(["sh", "-c", "cat; sleep 0.1; echo end"], stdin=True) as sock:
        sock.sendall(shim.frame(shim.STDIN, b"abc"))
        sock.shutdown(socket.SHUT_WR)
        result = shim.collect(sock)
    assert result.stdout == b"abcend\n" and code(result) == 0
    with server.start(["sh", "-c", "sleep 0.1; echo end"]) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert shim.collect(sock).stdout == b"end\n"


def test_stdin_ends_while_another_command_is_stuck_before_its_execve(
    server: Server, tmp_path: Path
) -> None:
    program = tmp_path / "leased"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(program, os.O_RDWR)
    try:
        # An execve of the file waits until the lease is given back.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with server.start(["cat"], stdin=True) as cat:
            assert next(shim.frames(cat))[0] == shim.STARTED
            with server.start([str(program)]) as stuck:
                assert eventually(lambda: len(server.children()) == 2)
                cat.settimeout(10)
                cat.sendall(shim.frame(shim.STDIN, b"end") + shim.frame(shim.STDIN_EOF))
                result = shim.collect(cat)
                assert (result.stdout, result.value) == (b"end", 0)
                os.close(fd)
                fd = -1
                result = shim.collect(stuck)
                # ETXTBSY when the lease was broken before the file was closed.
                assert result.value == 0 or (result.error and result.error[1] == errno.ETXTBSY)
    finally:
        if fd >= 0:
            os.close(fd)
        signal.signal(signal.SIGIO, old)


def test_closed_stdin_is_not_an_error(server: Server) -> None:
    with server.start(["sh", "-c", "exec <&-; echo closed; sleep 0.3"], stdin=True) as sock:
        read_until(sock, b"closed")
        for _ in range(3):
            sock.sendall(shim.frame(shim.STDIN, b"x" * 65536))
        assert code(shim.collect(sock)) == 0


def test_signal_is_not_stuck_behind_unread_stdin(server: Server) -> None:
    with server.start(["sleep", "1000"], stdin=True) as sock:
        for _ in range(shim.STDIN_WINDOW // 65536):
            sock.sendall(shim.frame(shim.STDIN, b"x" * 65536))
        sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGTERM)))
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGTERM)


def test_output_is_complete_for_a_slow_reader(server: Server) -> None:
    with server.start(["head", "-c", "3000000", "/dev/zero"], drain_ms=50) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        time.sleep(0.5)
        total = 0
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                total += len(payload)
            elif kind == shim.EXIT:
                assert struct.unpack("<III", payload) == (0, 0, 1)
                break
    assert total == 3000000


def test_slow_reader_with_a_grandchild_loses_nothing(server: Server) -> None:
    script = "head -c 500000 /dev/zero; echo end; sleep 1000 &"
    with server.start(["sh", "-c", script], drain_ms=50) as sock:
        time.sleep(0.5)
        result = shim.collect(sock)
    assert len(result.stdout) == 500004 and result.stdout.endswith(b"end\n")
    assert code(result) == 0 and result.drained == 0


def test_grandchild_does_not_hold_up_the_exit(server: Server) -> None:
    start = time.monotonic()
    result = server.sh("sleep 1000 & echo $!; exit 5", drain_ms=300)
    took = time.monotonic() - start
    assert code(result) == 5 and result.drained == 0
    assert 0.3 <= took < 20
    pid = int(result.stdout)
    assert eventually(lambda: not alive(pid)), "the grandchild outlives its exec"


def test_chatty_grandchild_does_not_hold_up_the_exit(server: Server) -> None:
    result = server.sh("yes & exit 6", drain_ms=200)
    assert code(result) == 6 and result.drained == 0
    assert set(bytes(result.stdout).split()) <= {b"y"}


def test_late_output_within_the_drain_time_comes(server: Server) -> None:
    result = server.sh("(sleep 0.2; echo late) & echo early", drain_ms=20000)
    assert result.stdout == b"early\nlate\n" and result.drained == 1


def test_daemon_without_pipes_is_killed_after_the_exit(server: Server) -> None:
    result = server.sh("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
    assert code(result) == 0 and result.drained == 1
    assert eventually(lambda: not alive(int(result.stdout)))


def test_client_that_vanishes_takes_the_command_with_it(server: Server) -> None:
    script = "sleep 1000 & echo $!; wait"
    sock = server.start(["sh", "-c", script])
    pids = []
    for kind, payload in shim.frames(sock):
        if kind == shim.STARTED:
            pids.append(struct.unpack("<I", payload)[0])
        if kind == shim.STDOUT:
            pids.append(int(payload))
            break
    assert all(alive(pid) for pid in pids)
    sock.close()
    for pid in pids:
        assert eventually(lambda pid=pid: not alive(pid))
    # Also one that said before that it sends nothing more.
    sock = server.start(["sleep", "1000"])
    sock.shutdown(socket.SHUT_WR)
    _, payload = next(shim.frames(sock))
    pid = struct.unpack("<I", payload)[0]
    time.sleep(0.05)
    assert alive(pid)
    sock.close()
    assert eventually(lambda: not alive(pid))
    # And one in the middle of much output and unread input.
    sock = server.start(["sh", "-c", "yes"], stdin=True)
    sock.sendall(shim.frame(shim.STDIN, b"x" * 65536))
    _, payload = next(shim.frames(sock))
    sock.close()
    assert eventually(lambda: not alive(struct.unpack("<I", payload)[0]))


def test_whole_session_escape_is_killed_with_a_cgroup(server: Server) -> None:
    if server.cgroup is None:
        pytest.skip("process groups can't")
    result = server.sh("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!; sleep 0.1")
    pid = int(result.stdout)
    assert eventually(lambda: not alive(pid))
    script = (
        f"d={server.cgroup}/$(sed -n 's/^0:.*thaw-test-[0-9]*.//p' /proc/self/cgroup); "
        "mkdir -p $d/a/b; echo $$ >$d/a/b/cgroup.procs; (setsid sleep 1000 &) >/dev/null 2>&1"
    )
    assert code(server.sh(script)) == 0
    want = {"exec-"}
    assert eventually(
        lambda: sum(any(p.name.startswith(w) for w in want) for p in server.cgroup.iterdir()) == 1
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 8,
        struct.pack("<IBBH", 0, shim.EXEC, 2, 0),
        struct.pack("<IBBH", 0, shim.PING, 1, 1),
        struct.pack("<IBBH", 65, shim.PING, 1, 0),
        struct.pack("<IBBH", 0xFFFFFFFF, shim.EXEC, 1, 0),
        struct.pack("<IBBH", 40, shim.EXEC, 1, 0) + b"\0" * 40,
        shim.frame(shim.STDIN, b"x"),
        shim.frame(shim.SIGNAL, struct.pack("<I", 9)),
        shim.frame(shim.STDOUT, b"x"),
        shim.frame(shim.EXEC, shim.exec_payload(["true"])[:-1]),
        shim.frame(shim.EXEC, shim.exec_payload(["true"]) + b"\0"),
        shim.frame(shim.EXEC, shim.exec_payload([""])),
        shim.frame(shim.EXEC, shim.exec_payload(["true"], uid=0xFFFFFFFF)),
        shim.frame(shim.EXEC, shim.exec_payload(["true"], env={"": "x"})),
        shim.frame(shim.EXEC, shim.exec_payload(["true"], cwd="")),
    ],
)
def test_malformed_requests_are_refused(server: Server, data: bytes) -> None:
    with server.connect() as sock:
        sock.sendall(data)
        result = shim.collect(sock)
        assert result.error is not None and result.error[0] == REQUEST
        assert sock.recv(1) == b""
    assert code(server.run("true")) == 0


@pytest.mark.parametrize(
    "data",
    [
        shim.frame(shim.EXEC, shim.exec_payload(["true"])),
        shim.frame(shim.PING),
        shim.frame(shim.SIGNAL, struct.pack("<I", 0)),
        shim.frame(shim.SIGNAL, struct.pack("<I", 65)),
        shim.frame(shim.STDIN_EOF) + shim.frame(shim.STDIN, b"x"),
        shim.frame(shim.STDIN, b"x" * 65536) * 6,  # one fits the pipe, four the window
        b"\xff" * 8,
    ],
)
def test_malformed_later_frames_end_the_command(server: Server, data: bytes) -> None:
    with server.start(["sleep", "1000"], stdin=True) as sock:
        _, payload = next(shim.frames(sock))
        pid = struct.unpack("<I", payload)[0]
        with contextlib.suppress(BrokenPipeError):  # it need not read what follows
            sock.sendall(data)
        result = shim.collect(sock)
    assert result.error is not None and result.error[0] == REQUEST
    assert eventually(lambda: not alive(pid))


def test_stdin_without_the_flag_is_refused(server: Server) -> None:
    with server.start(["sleep", "1000"]) as sock:
        sock.sendall(shim.frame(shim.STDIN, b"x"))
        result = shim.collect(sock)
    assert result.error is not None and result.error[0] == REQUEST


def test_frames_may_come_byte_by_byte(server: Server) -> None:
    data = shim.frame(shim.EXEC, shim.exec_payload(["cat"], stdin=True))
    data += shim.frame(shim.STDIN, b"hello") + shim.frame(shim.STDIN) + shim.frame(shim.STDIN_EOF)
    with server.connect() as sock:
        for byte in data:
            sock.sendall(bytes([byte]))
        result = shim.collect(sock)
    assert result.stdout == b"hello" and code(result) == 0


def test_stream_that_ends_early_is_forgotten(server: Server) -> None:
    for size in (0, 1, 8, 20):
        data = shim.frame(shim.EXEC, shim.exec_payload(["true"]))[:size]
        with server.connect() as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
    assert code(server.run("true")) == 0


def test_large_requests(server: Server) -> None:
    # Below the kernel's own limit of 128 KiB a string.
    args = [b"x" * 100000] * 15
    result = server.sh("echo $# ${#1}", env={f"V{i}": "y" * 1000 for i in range(200)})
    assert code(result) == 0
    result = server.run("sh", "-c", "echo $# ${#1}", "sh", *args)
    assert result.stdout == b"15 100000\n"
    result = server.run("true", b"x" * 200000)
    assert result.error is not None and result.error[:2] == (EXEC, errno.E2BIG)
    many = ["true", *[""] * 65535]
    assert code(server.run(*many)) == 0
    result = server.run(*many, "")
    assert result.error is not None and result.error[:2] == (REQUEST, errno.E2BIG)


def test_ping(server: Server) -> None:
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.PING, b"p" * 64))
        assert next(shim.frames(sock)) == (shim.PONG, b"p" * 64)
        assert sock.recv(1) == b""


def test_checkpoint_waits_and_serving_goes_on_without_a_device(server: Server) -> None:
    with server.start(["sleep", "1000"]) as running:
        next(shim.frames(running))
        with server.connect() as sock:
            sock.sendall(shim.frame(shim.CHECKPOINT))
            assert next(shim.frames(sock)) == (shim.OK, b"")
            with server.connect() as second:
                second.sendall(shim.frame(shim.CHECKPOINT))
                result = shim.collect(second)
                assert result.error is not None and result.error[1] == errno.EBUSY
        time.sleep(0.1)
        server.log.seek(0)
        assert b"checkpoint" not in server.log.read()
    assert eventually(lambda: b"no /dev/thaw" in Path(server.log.name).read_bytes())
    assert code(server.run("true")) == 0


def test_live_checkpoint_waits_for_nobody(server: Server) -> None:
    with server.start(["cat"], stdin=True) as running:
        next(shim.frames(running))
        with server.connect() as sock:
            sock.sendall(shim.frame(shim.CHECKPOINT_LIVE))
            assert next(shim.frames(sock)) == (shim.OK, b"")
            with server.connect() as second:
                second.sendall(shim.frame(shim.CHECKPOINT))
                result = shim.collect(second)
                assert result.error is not None and result.error[1] == errno.EBUSY
        assert eventually(lambda: b"no /dev/thaw" in Path(server.log.name).read_bytes())
        # Here no clone is made: the command has its stream as before.
        running.sendall(shim.frame(shim.STDIN, b"still here") + shim.frame(shim.STDIN_EOF))
        result = shim.collect(running)
        assert result.stdout == b"still here" and code(result) == 0


def test_detached_command_goes_on_without_its_stream(server: Server, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"echo lost; head -c 300000 /dev/zero; until [ -e {mark}.go ]; do sleep 0.01; done"
    script += f"; readlink /proc/self/fd/0 /proc/self/fd/1 > {mark}.fds; echo > {mark}"
    with server.start(["sh", "-c", script], detach=True) as sock:
        kind, payload = next(shim.frames(sock))
        assert kind == shim.STARTED
        assert sock.recv(1) == b""
    (pid,) = struct.unpack("<I", payload)
    assert alive(pid) and not mark.exists()
    Path(f"{mark}.go").touch()
    assert eventually(mark.exists) and eventually(lambda: not alive(pid))
    assert Path(f"{mark}.fds").read_text().split()[0] == "/dev/null"
    assert eventually(lambda: not server.children())
    # What it leaves behind ends with it, as ever.
    child = tmp_path / "child"
    script = f"sleep 1000 & echo $! > {child}"
    with server.start(["sh", "-c", script], detach=True) as sock:
        assert next(shim.frames(sock))[0] == shim.STARTED
    assert eventually(lambda: child.exists() and child.read_text() != "")
    assert eventually(lambda: not alive(int(child.read_text())))


def test_detached_command_that_does_not_start(server: Server) -> None:
    with server.start(["no-such-program"], detach=True) as sock:
        result = shim.collect(sock)
    assert result.error is not None and result.error[:2] == (EXEC, errno.ENOENT)
    with server.start(["cat"], detach=True, stdin=True) as sock:
        result = shim.collect(sock)
    assert result.error is not None and result.error[:2] == (REQUEST, errno.EINVAL)


def test_fifty_at_once(server: Server) -> None:
    socks = [server.start(["sh", "-c", f"read x; echo $x {i}; exit {i}"], stdin=True)
             for i in range(50)]  # fmt: skip
    for i, sock in enumerate(socks):
        sock.sendall(shim.frame(shim.STDIN, f"line {i}\n".encode()))
    for i, sock in reversed(list(enumerate(socks))):
        result = shim.collect(sock)
        assert result.stdout == f"line {i} {i}\n".encode() and code(result) == i
        sock.close()


def test_too_many_are_refused_and_nothing_breaks(server: Server) -> None:
    socks = [server.start(["sleep", "1000"]) for _ in range(128)]
    for sock in socks:
        assert next(shim.frames(sock))[0] == shim.STARTED
    with server.start(["true"]) as sock:
        result = shim.collect(sock)
    assert result.error is not None and result.error[:2] == (REQUEST, errno.EAGAIN)
    # What makes no process is still served.
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.PING, b"x"))
        assert next(shim.frames(sock)) == (shim.PONG, b"x")
    for sock in socks:
        sock.close()
    assert eventually(lambda: not server.children())
    assert eventually(lambda: server.run("true").error is None)


def test_a_thousand_in_a_row_leave_nothing(server: Server) -> None:
    for _ in range(20):
        assert code(server.run("true")) == 0
    assert eventually(lambda: not server.children())
    # An idle shim has a spare cgroup; it is made a moment after the last exec's end.
    time.sleep(0.5)
    fds, mappings, rss = server.fds(), server.mappings(), server.rss_kib()
    for i in range(1000):
        result = server.run("sh", "-c", f"echo {i}") if i % 10 == 0 else server.run("true")
        assert code(result) == 0
        if i % 7 == 0:
            server.start(["sleep", "1000"]).close()
        if i % 11 == 0:
            assert server.run("/no/such").error
    assert eventually(lambda: not server.children())
    assert eventually(lambda: server.fds() == fds), (server.fds(), fds)
    assert server.mappings() <= mappings + 2
    assert server.rss_kib() <= rss + 512
    if server.cgroup:
        assert eventually(
            lambda: len([p for p in server.cgroup.iterdir() if p.is_dir()]) == 1  # the spare
        )


def test_hundred_mib_both_ways(server: Server) -> None:
    size = 100 << 20
    block = os.urandom(65536)
    sent, got = hashlib.sha256(), hashlib.sha256()
    rss = server.rss_kib()
    with server.start(["cat"], stdin=True) as sock:
        state = {"window": shim.STDIN_WINDOW, "left": size}
        room = threading.Condition()

        def send() -> None:
            while state["left"]:
                with room:
                    room.wait_for(lambda: state["window"] >= len(block))
                    state["window"] -= len(block)
                sock.sendall(shim.frame(shim.STDIN, block))
                sent.update(block)
                state["left"] -= len(block)
            sock.sendall(shim.frame(shim.STDIN_EOF))

        sender = threading.Thread(target=send)
        sender.start()
        total = 0
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                got.update(payload)
                total += len(payload)
            elif kind == shim.STDIN_CREDIT:
                with room:
                    state["window"] += struct.unpack("<I", payload)[0]
                    room.notify()
            elif kind == shim.EXIT:
                assert struct.unpack("<III", payload) == (0, 0, 1)
                break
        sender.join()
    assert total == size and got.digest() == sent.digest()
    assert server.rss_kib() < rss + 2048


def test_one_stalled_stream_does_not_stall_the_others(server: Server) -> None:
    with server.start(["yes"]) as stalled:
        time.sleep(0.2)
        for _ in range(20):
            assert code(server.run("true")) == 0
        cpu = cpu_ticks(server.proc.pid)
        time.sleep(0.5)
        assert cpu_ticks(server.proc.pid) - cpu <= 5, "the shim spins"
        assert select.select([stalled], [], [], 0)[0]


def test_idle_streams_do_not_make_it_spin(server: Server) -> None:
    socks = [server.start(["sleep", "1000"], stdin=True) for _ in range(4)]
    socks[0].shutdown(socket.SHUT_WR)
    for _ in range(4):
        socks[1].sendall(shim.frame(shim.STDIN, b"x" * 65536))
    socks[2].sendall(shim.frame(shim.STDIN_EOF))
    socks.append(server.start(["sh", "-c", "exec >&- 2>&-; sleep 1000"]))
    time.sleep(0.2)
    cpu = cpu_ticks(server.proc.pid)
    time.sleep(0.5)
    assert cpu_ticks(server.proc.pid) - cpu <= 2, "the shim spins"
    for sock in socks:
        sock.close()
    assert eventually(lambda: not server.children())


def test_poweroff_is_answered_first(tmp_path: Path) -> None:
    server = Server(tmp_path, None)
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.POWEROFF))
        assert next(shim.frames(sock)) == (shim.OK, b"")
    assert server.proc.wait(timeout=WAIT_S) == 0


def test_shutdown_is_answered_first(tmp_path: Path) -> None:
    server = Server(tmp_path, None)
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.SHUTDOWN))
        result = shim.collect(sock)
        assert result.error is not None and result.error[0] == REQUEST
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.SHUTDOWN, struct.pack("<I", 1000)))
        assert next(shim.frames(sock)) == (shim.OK, b"")
    assert server.proc.wait(timeout=WAIT_S) == 0


def test_serve_fd_ends_with_its_stream() -> None:
    ours, theirs = socket.socketpair()
    proc = subprocess.Popen([str(SHIM), "--serve-fd", str(theirs.fileno())],
                            pass_fds=[theirs.fileno()])  # fmt: skip
    theirs.close()
    ours.settimeout(WAIT_S)
    ours.sendall(shim.frame(shim.EXEC, shim.exec_payload(["echo", "hi"])))
    assert shim.collect(ours).stdout == b"hi\n"
    ours.close()
    assert proc.wait(timeout=WAIT_S) == 0


def test_bad_arguments_are_refused() -> None:
    for argv in ([], ["--listen-unix"], ["--serve-fd", "3", "--listen-unix", "/x"], ["--x", "y"]):
        proc = subprocess.run([str(SHIM), *argv], capture_output=True, check=False)
        assert proc.returncode == 2 and b"usage" in proc.stderr
