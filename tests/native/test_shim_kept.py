# SPDX-License-Identifier: Apache-2.0
"""Kept execs of thaw-shim: output that waits, streams that come and go, limits."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[1] / "vm"),
]

import shim  # noqa: E402
import shim_server  # noqa: E402
from shim_server import EXEC, REQUEST, Server, alive, code, cpu_ticks, eventually  # noqa: E402

pytestmark = shim_server.needs_shim
server = shim_server.server


def new_id() -> bytes:
    return os.urandom(16)


def started(sock: socket.socket) -> int:
    kind, payload = next(shim.frames(sock))
    assert kind == shim.STARTED, (kind, payload)
    return int(struct.unpack("<I", payload)[0])


def attach(server: Server, id: bytes, offset: int = 0) -> socket.socket:
    sock = server.connect()
    sock.sendall(shim.attach(id, offset))
    return sock


def attached(sock: socket.socket) -> shim.Attached:
    kind, payload = next(shim.frames(sock))
    assert kind == shim.ATTACHED, (kind, payload)
    return shim.Attached(*struct.unpack("<QQII", payload))


def entries(server: Server) -> dict[bytes, shim.Entry]:
    with server.connect() as sock:
        return shim.entries(sock)


def forget(server: Server, id: bytes) -> tuple[int, int, str] | None:
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.FORGET, id))
        return shim.answer(sock)


def ended(server: Server, id: bytes) -> bool:
    return entries(server)[id].state == shim.ENDED


def stop(server: Server, id: bytes) -> None:
    """End it and forget it."""
    with attach(server, id, shim.END) as sock:
        attached(sock)
        sock.sendall(shim.frame(shim.KILL))
        assert shim.collect(sock).kind is not None
    assert eventually(lambda: forget(server, id) is None)


def test_output_and_status_wait_for_whoever_comes(server: Server) -> None:
    id, before = new_id(), time.time_ns()
    with server.start(["sh", "-c", "echo out; echo err >&2; exit 7"], keep=id) as sock:
        result = shim.collect(sock)
    assert (result.stdout, result.stderr, code(result)) == (b"out\n", b"err\n", 7)
    assert result.flags == shim.DRAINED
    for _ in range(2):
        with attach(server, id) as sock:
            again = shim.collect(sock)
        assert (again.stdout, again.stderr, code(again)) == (b"out\n", b"err\n", 7)
        assert again.attached == shim.Attached(0, 8, result.pid or 0, shim.ENDED)
    with attach(server, id, shim.END) as sock:
        again = shim.collect(sock)
    assert (again.stdout, again.stderr, again.value) == (b"", b"", 7)
    assert again.attached and again.attached.offset == 8
    entry = entries(server)[id]
    assert (entry.state, entry.kind, entry.value, entry.flags) == (shim.ENDED, 0, 7, shim.DRAINED)
    assert (entry.oldest, entry.end, entry.pid) == (0, 8, result.pid)
    assert entry.ext_flags == shim.EXT_KEEP
    assert before <= entry.started_ns <= time.time_ns()
    assert forget(server, id) is None
    assert entries(server) == {}
    assert (forget(server, id) or ())[:2] == (REQUEST, errno.ENOENT)
    with attach(server, id) as sock:
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.ENOENT)


def test_order_of_both_streams_is_kept(server: Server) -> None:
    id = new_id()
    script = "for i in 1 2 3 4 5; do echo o$i; sleep 0.02; echo e$i >&2; sleep 0.02; done"
    with server.start(["sh", "-c", script], keep=id) as sock:
        shim.collect(sock)
    with attach(server, id) as sock:
        pieces = [p for kind, p in _until_exit(sock) if kind in (shim.STDOUT, shim.STDERR)]
    assert b"".join(pieces) == b"".join(b"o%d\ne%d\n" % (i, i) for i in range(1, 6))
    # From the middle of a piece.
    with attach(server, id, 7) as sock:
        pieces = [p for kind, p in _until_exit(sock) if kind in (shim.STDOUT, shim.STDERR)]
    assert b"".join(pieces) == b"2\ne2\no3\ne3\no4\ne4\no5\ne5\n"[-23:]


def _until_exit(sock: socket.socket) -> list[tuple[int, bytes]]:
    got = []
    for kind, payload in shim.frames(sock):
        got.append((kind, payload))
        if kind in (shim.EXIT, shim.ERROR):
            break
    return got


def test_it_outlives_its_stream(server: Server, tmp_path: Path) -> None:
    id, go = new_id(), tmp_path / "go"
    script = f"echo one; until [ -e {go} ]; do sleep 0.01; done; echo two; exit 3"
    with server.start(["sh", "-c", script], keep=id) as sock:
        pid = started(sock)
    assert eventually(lambda: not entries(server)[id].attached)
    assert alive(pid)
    go.touch()
    assert eventually(lambda: ended(server, id))
    with attach(server, id, 2) as sock:
        result = shim.collect(sock)
    assert (result.stdout, code(result)) == (b"e\ntwo\n", 3)
    assert forget(server, id) is None


def test_an_end_of_the_stream_is_no_end_of_stdin(server: Server) -> None:
    id = new_id()
    with server.start(["cat"], keep=id, stdin=True) as sock:
        started(sock)
        sock.sendall(shim.frame(shim.STDIN, b"abc"))
        assert next(shim.frames(sock)) == (shim.STDOUT, b"abc")
        # In the middle of a frame.
        sock.sendall(shim.frame(shim.STDIN, b"lost")[:9])
    assert eventually(lambda: not entries(server)[id].attached)
    with attach(server, id, 3) as sock:
        assert attached(sock).state == shim.RUNNING
        # What may be sent is told anew.
        kind, payload = next(shim.frames(sock))
        assert kind == shim.STDIN_CREDIT
        assert struct.unpack("<I", payload)[0] == shim.STDIN_WINDOW
        sock.sendall(shim.frame(shim.STDIN, b"def") + shim.frame(shim.STDIN_EOF))
        result = shim.collect(sock)
    assert bytes(result.stdout) in (b"def", b"ldef") and code(result) == 0
    # After its end there is none to send.
    with attach(server, id) as sock:
        kinds = [kind for kind, _ in _until_exit(sock)]
    assert shim.STDIN_CREDIT not in kinds


def test_credit_after_attach_is_what_the_ring_has_free(server: Server) -> None:
    id = new_id()
    with server.start(["sleep", "1000"], keep=id, stdin=True) as sock:
        started(sock)
        for _ in range(3):
            sock.sendall(shim.frame(shim.STDIN, b"x" * 65536))
        # Seen behind the stdin.
        sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGCONT)))
        with server.connect() as other:
            shim.entries(other)
        with attach(server, id) as second:
            attached(second)
            kind, payload = next(shim.frames(second))
            free = struct.unpack("<I", payload)[0]
            # The pipe has taken one of them.
            assert (kind, free) == (shim.STDIN_CREDIT, shim.STDIN_WINDOW - 2 * 65536)
            second.sendall(shim.frame(shim.STDIN, b"y" * 65536) * 2)
            assert not entries(server)[id].state
            second.sendall(shim.frame(shim.STDIN, b"y"))
            error = shim.collect(second).error
            assert error and error[:2] == (REQUEST, errno.EPROTO)
    stop(server, id)


def test_takeover(server: Server) -> None:
    id = new_id()
    with server.start(["cat"], keep=id, stdin=True) as first:
        started(first)
        first.sendall(shim.frame(shim.STDIN, b"1"))
        assert next(shim.frames(first)) == (shim.STDOUT, b"1")
        with attach(server, id) as second:
            assert attached(second).offset == 0
            error = shim.collect(first).error
            assert error and error[:2] == (REQUEST, errno.ESTALE)
            assert first.recv(1) == b""
            # Frames right behind the request belong to the command, too.
            third = server.connect()
            third.sendall(
                shim.attach(id, shim.END)
                + shim.frame(shim.STDIN, b"2")
                + shim.frame(shim.STDIN_EOF)
            )
            result = shim.collect(third)
            third.close()
            assert (result.stdout, code(result)) == (b"2", 0)
            old = shim.collect(second)
            assert old.error and old.error[1] == errno.ESTALE and old.stdout == b"1"


def test_takeover_from_a_stalled_stream(server: Server) -> None:
    id = new_id()
    with server.start(["sh", "-c", "yes | head -c 3000000"], keep=id) as first:
        assert eventually(lambda: entries(server)[id].end == shim.RING_UNACKED_MAX)
        with attach(server, id) as second:
            total = _read_all(second)
        assert total == 3000000
        # The first one gets whole frames as far as they were sent, then the reason.
        error = shim.collect(first).error
        assert error and error[1] == errno.ESTALE


def _read_all(sock: socket.socket, at: int = 0) -> int:
    """Read to the exit with acknowledgements; the offset behind the last byte."""
    for kind, payload in shim.frames(sock):
        if kind == shim.STDOUT:
            at += len(payload)
            sock.sendall(shim.ack(at))
        if kind == shim.EXIT:
            return at
        assert kind != shim.ERROR, payload
    raise AssertionError("unreachable")


def test_unacknowledged_output_blocks_only_its_command(server: Server) -> None:
    id = new_id()
    with server.start(["sh", "-c", "yes | head -c 2000000; exit 4"], keep=id):
        pass
    assert eventually(lambda: entries(server)[id].end == shim.RING_UNACKED_MAX)
    cpu = cpu_ticks(server.proc.pid)
    time.sleep(0.3)
    assert cpu_ticks(server.proc.pid) - cpu <= 2, "the shim spins"
    assert code(server.run("true")) == 0
    entry = entries(server)[id]
    assert (entry.end, entry.oldest, entry.state) == (shim.RING_UNACKED_MAX, 0, shim.RUNNING)
    with attach(server, id) as sock:
        assert _read_all(sock) == 2000000
    entry = entries(server)[id]
    assert (entry.end, entry.value) == (2000000, 4)
    # What was acknowledged can still be read as far as the ring goes.
    assert shim.RING_BYTES - 140000 <= entry.end - entry.oldest <= shim.RING_BYTES
    with attach(server, id) as sock:
        assert attached(sock).offset == entry.oldest
        assert _read_all(sock, entry.oldest) == 2000000
    with attach(server, id, 1999999) as sock:
        assert shim.collect(sock).stdout == b"\n"


def test_an_end_needs_no_acknowledgement(server: Server) -> None:
    killed, ended_itself = new_id(), new_id()
    with server.start(["sh", "-c", "yes & yes >&2"], keep=killed) as sock:
        assert eventually(lambda: entries(server)[killed].end == shim.RING_UNACKED_MAX)
        sock.sendall(shim.frame(shim.KILL))
        result = shim.collect(sock)
    assert result.value == signal.SIGKILL
    size = shim.RING_UNACKED_MAX + 60000
    with server.start(["head", "-c", str(size), "/dev/zero"], keep=ended_itself):
        pass
    assert eventually(lambda: ended(server, ended_itself))
    with attach(server, ended_itself) as sock:
        assert len(shim.collect(sock).stdout) == size


def test_a_reader_without_acknowledgements_gets_what_the_ring_may_hold(server: Server) -> None:
    id = new_id()
    with server.start(["sh", "-c", "yes | head -c 2000000"], keep=id) as sock:
        total = 0
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                total += len(payload)
            if total == shim.RING_UNACKED_MAX:
                break
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(shim_server.WAIT_S)
        sock.sendall(shim.ack(total))
        assert _read_all(sock, total) == 2000000


def test_many_small_writes_of_both_streams(server: Server) -> None:
    id = new_id()
    script = (
        "import os\nfor i in range(150000):\n os.write(1 + i % 2, b'%d' % (i % 10))\nos._exit(0)\n"
    )
    with server.start([sys.executable, "-c", script], keep=id) as sock:
        seen = 0
        out, err = bytearray(), bytearray()
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                out += payload
            if kind == shim.STDERR:
                err += payload
            if kind in (shim.STDOUT, shim.STDERR):
                seen += len(payload)
                sock.sendall(shim.ack(seen))
            if kind == shim.EXIT:
                break
    assert out == b"02468" * 15000 and err == b"13579" * 15000


def test_bad_acknowledgements_and_frames_leave_the_command_alone(server: Server) -> None:
    id = new_id()
    with server.start(["sh", "-c", "echo hi; sleep 1000"], keep=id) as sock:
        pid = started(sock)
    for bad in (
        shim.ack(4),
        shim.ack(shim.END),
        shim.frame(shim.SIGNAL, struct.pack("<I", 65)),
        shim.frame(shim.STDIN, b"x"),
        shim.frame(shim.PING),
        shim.resize(80, 24),
        b"\xff" * 8,
    ):
        with attach(server, id, shim.END) as sock:
            attached(sock)
            sock.sendall(bad)
            error = shim.collect(sock).error
            assert error and error[0] == REQUEST
            assert sock.recv(1) == b""
    assert alive(pid)
    with server.start(["sleep", "1000"]) as sock:
        started(sock)
        sock.sendall(shim.ack(0))
        error = shim.collect(sock).error
        assert error and error[:2] == (REQUEST, errno.EPROTO)
    assert (forget(server, id) or ())[:2] == (REQUEST, errno.EBUSY)
    stop(server, id)


@pytest.mark.parametrize(
    "options",
    [
        {"keep": bytes(16), "timeout_ms": 1, "change": (0, 1)},  # KEEP without an id
        {"keep": b"x" * 16, "change": (0, 0)},  # an id without KEEP
        {"timeout_ms": 1, "change": (0, 16)},  # an unknown flag
        {"timeout_ms": 1, "change": (20, 1)},  # reserved
        {"timeout_ms": 1, "change": (8, 80)},  # columns without rows
        {"keep": b"x" * 16, "detach": True},
    ],
)
def test_malformed_options_are_refused(server: Server, options: dict[str, object]) -> None:
    wanted = {name: value for name, value in options.items() if name != "change"}
    payload = bytearray(shim.exec_payload(["true"], **wanted))  # type: ignore[arg-type]
    if "change" in options:
        at, value = options["change"]  # type: ignore[misc]
        struct.pack_into("<I", payload, 32 + 16 + at, value)
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.EXEC, bytes(payload)))
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EINVAL)


def test_an_id_is_taken_until_it_is_forgotten(server: Server) -> None:
    id = new_id()
    with server.start(["true"], keep=id) as sock:
        assert code(shim.collect(sock)) == 0
    with server.start(["true"], keep=id) as sock:
        error = shim.collect(sock).error
    assert error and error[:2] == (REQUEST, errno.EEXIST)
    assert forget(server, id) is None
    with server.start(["true"], keep=id) as sock:
        assert code(shim.collect(sock)) == 0


def test_what_does_not_start_is_not_kept(server: Server) -> None:
    with server.start(["no-such-program"], keep=new_id()) as sock:
        error = shim.collect(sock).error
    assert error and error[:2] == (EXEC, errno.ENOENT)
    assert entries(server) == {}


def test_acknowledged_ends_are_pushed_out_and_no_others(server: Server) -> None:
    acked, other = [new_id() for _ in range(70)], [new_id() for _ in range(3)]
    for id in other + acked:
        with server.start(["echo", "x"], keep=id) as sock:
            at = _read_all_only(sock, ack=id in acked)
            assert at == 2
            assert sock.recv(1) == b""
    assert eventually(lambda: len(entries(server)) == shim.KEPT_ENDED_MAX)
    left = entries(server)
    assert all(id in left for id in other)
    # Those that ended first went.
    assert [id for id in acked if id in left] == acked[70 - (shim.KEPT_ENDED_MAX - 3) :]
    fds = server.fds()
    for id in left:
        assert forget(server, id) is None
    assert entries(server) == {}
    assert eventually(lambda: server.fds() <= fds)


def _read_all_only(sock: socket.socket, ack: bool) -> int:
    at = 0
    for kind, payload in shim.frames(sock):
        if kind == shim.STDOUT:
            at += len(payload)
        if kind == shim.EXIT:
            break
    # Behind the exit: the shim still listens.
    if ack:
        sock.sendall(shim.ack(at))
    return at


def test_unacknowledged_ends_fill_up_and_leave_room_for_streams(server: Server) -> None:
    ids = []
    while True:
        id = new_id()
        with server.start(["echo", "x"], keep=id) as sock:
            result = shim.collect(sock)
        if result.error:
            break
        ids.append(id)
    assert result.error[:2] == (REQUEST, errno.EAGAIN)
    assert len(ids) == 128 + shim.KEPT_ENDED_MAX
    assert code(server.run("true")) == 0
    assert set(entries(server)) == set(ids)
    assert forget(server, ids[0]) is None
    with server.start(["true"], keep=ids[0]) as sock:
        assert code(shim.collect(sock)) == 0


def test_a_short_one_costs_no_memory_of_its_own(server: Server) -> None:
    for _ in range(8):
        id = new_id()
        with server.start(["echo", "x"], keep=id) as sock:
            shim.collect(sock)
        assert forget(server, id) is None
    mappings = server.mappings()
    for _ in range(300):
        id = new_id()
        with server.start(["echo", "x"], keep=id) as sock:
            shim.collect(sock)
        assert server.mappings() <= mappings + 2
        assert forget(server, id) is None
    # 64 that have ended: a page each, not a ring.
    rss = server.rss_kib()
    for _ in range(64):
        with server.start(["echo", "x"], keep=new_id()) as sock:
            shim.collect(sock)
    assert server.rss_kib() <= rss + 64 * 24


def test_kill_takes_all_of_it(server: Server) -> None:
    with server.start(["sh", "-c", "sleep 1000 & echo $!; wait"]) as sock:
        pid = started(sock)
        _, payload = next(shim.frames(sock))
        sock.sendall(shim.frame(shim.KILL))
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    assert eventually(lambda: not alive(int(payload)) and not alive(pid))
    # Sent with the request, and to one that has ended.
    id = new_id()
    with server.start(["sleep", "1000"], keep=id) as sock:
        sock.sendall(shim.frame(shim.KILL) * 3)
        result = shim.collect(sock)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    with attach(server, id) as sock:
        sock.sendall(shim.frame(shim.KILL) + shim.frame(shim.SIGNAL, struct.pack("<I", 9)))
        assert shim.collect(sock).value == signal.SIGKILL


def test_time_out(server: Server) -> None:
    result = server.sh("echo before; sleep 1000 & sleep 1000", timeout_ms=200)
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    assert result.flags is not None and result.flags & shim.TIMED_OUT
    assert result.stdout == b"before\n" and result.drained
    result = server.sh("exit 5", timeout_ms=20000)
    assert code(result) == 5 and result.flags == shim.DRAINED
    id = new_id()
    with server.start(["sleep", "1000"], keep=id, timeout_ms=100):
        pass
    assert eventually(lambda: ended(server, id))
    entry = entries(server)[id]
    assert (entry.kind, entry.value) == (shim.EXIT_SIGNAL, signal.SIGKILL)
    assert entry.flags & shim.TIMED_OUT
    # What it left behind has the drain time, not the time-out.
    result = server.sh("sleep 1000 & exit 6", timeout_ms=60000, drain_ms=100)
    assert code(result) == 6 and result.flags == 0


def test_a_time_out_of_weeks_is_no_busy_loop(server: Server) -> None:
    with server.start(["sleep", "1000"], timeout_ms=0xFFFFFFFF) as sock:
        started(sock)
        cpu = cpu_ticks(server.proc.pid)
        time.sleep(0.3)
        assert cpu_ticks(server.proc.pid) - cpu <= 2, "the shim spins"


def test_combined_keeps_the_order(server: Server) -> None:
    script = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    result = server.sh(script, combined=True)
    assert result.stdout == b"o1\ne1\no2\ne2\no3\ne3\n" and result.stderr == b""
    id = new_id()
    with server.start(["sh", "-c", script], combined=True, keep=id) as sock:
        result = shim.collect(sock)
    assert result.stdout == b"o1\ne1\no2\ne2\no3\ne3\n" and code(result) == 0


def test_nofile(server: Server) -> None:
    assert server.sh("ulimit -n; ulimit -Hn", nofile=123).stdout == b"123\n123\n"
    want = b"%d\n" % resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert server.sh("ulimit -n").stdout == want, "the shim's own limit is not the command's"
    # A limit beyond what the kernel allows is an error, not ignored.
    result = server.sh("true", nofile=0xFFFFFFFE)
    assert result.error and result.error[:2] == (shim_server.SETUP, errno.EPERM)


def test_pids_max_without_a_controller_is_for_tests(server: Server) -> None:
    assert code(server.run("true", pids_max=5)) == 0


def test_files_program(server: Server, tmp_path: Path) -> None:
    result = server.run("thaw-files", "x", files=True)
    assert result.error and result.error[:2] == (EXEC, errno.ENOENT)
    assert "thaw-files" in result.error[2]
    other = Server.__new__(Server)
    folder = tmp_path / "files"
    folder.mkdir()
    other.__init__(folder, None, "--files", "/bin/echo")  # type: ignore[misc]
    try:
        assert other.run("thaw-files", "a b", files=True).stdout == b"a b\n"
        result = other.run("thaw-files", "x", files=True, uid=1234, gid=1234)
        assert result.stdout == b"x\n"
        script = "ls /proc/self/fd | wc -l"
        assert other.sh(script).stdout == server.sh(script).stdout
    finally:
        other.stop()


def test_usage(server: Server) -> None:
    id = new_id()
    with server.start(["sleep", "1000"], keep=id) as sock:
        started(sock)
    with server.connect() as sock:
        usage = shim.usage(sock)
    assert usage.uptime_ms > 0 and usage.cpu_usage_us > 0 and usage.kept_execs == 1
    assert 0 < usage.memory_available_bytes < usage.memory_total_bytes
    assert 0 < usage.disk_free_bytes <= usage.disk_total_bytes and usage.processes > 0
    stop(server, id)


def test_checkpoint_waits_for_kept_ones_that_run_not_for_ended_ones(server: Server) -> None:
    done, running = new_id(), new_id()
    with server.start(["true"], keep=done) as sock:
        shim.collect(sock)
    with server.start(["sleep", "1000"], keep=running) as sock:
        started(sock)
    with server.connect() as sock:
        sock.sendall(shim.frame(shim.CHECKPOINT))
        assert shim.answer(sock) is None
    assert code(server.run("true")) == 0
    server.log.seek(0)
    assert b"checkpoint" not in server.log.read()
    stop(server, running)
    assert eventually(lambda: b"no /dev/thaw" in Path(server.log.name).read_bytes())
    assert set(entries(server)) == {done}


def test_a_hundred_and_twenty_eight_kept_ones_can_be_reached(server: Server) -> None:
    ids = [new_id() for _ in range(128)]
    for id in ids:
        with server.start(["cat"], keep=id, stdin=True) as sock:
            started(sock)
    result = server.run("true")
    assert result.error and result.error[:2] == (REQUEST, errno.EAGAIN)
    for i, id in enumerate(ids):
        with attach(server, id) as sock:
            sock.sendall(shim.frame(shim.STDIN, b"%d" % i) + shim.frame(shim.STDIN_EOF))
            result = shim.collect(sock)
            assert result.stdout == b"%d" % i and code(result) == 0
        assert forget(server, id) is None
    assert eventually(lambda: not server.children())
