# SPDX-License-Identifier: Apache-2.0
"""The exec matrix, by `thaw run` and by the exec protocol against a sandbox that stays."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import shim
from conftest import BIN, Sandbox, Thaw

MIB = 1 << 20


def test_streams_apart_and_code(thaw: Thaw) -> None:
    proc = thaw.sh("echo out; echo err >&2; exit 7")
    assert (proc.stdout, proc.stderr, proc.returncode) == (b"out\n", b"err\n", 7)


def test_output_is_bytes(thaw: Thaw) -> None:
    proc = thaw.run(
        "--", "python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)"
    )
    assert proc.stdout == bytes(range(256)) * 300
    assert proc.stderr == b"" and proc.returncode == 0


@pytest.mark.parametrize("code", [0, 1, 2, 123, 124, 125, 126, 127, 128, 200, 255])
def test_exit_codes(sandbox: Sandbox, code: int) -> None:
    result = sandbox.exec("sh", "-c", f"exit {code}")
    assert (result.kind, result.value, result.drained) == (shim.EXIT_CODE, code, 1)


def test_signal_exit(thaw: Thaw, sandbox: Sandbox) -> None:
    assert thaw.sh("kill -TERM $$").returncode == 128 + signal.SIGTERM
    result = sandbox.exec("sh", "-c", "kill -SEGV $$")
    assert (result.kind, result.value) == (shim.EXIT_SIGNAL, signal.SIGSEGV)


def test_not_found_and_not_executable(thaw: Thaw, sandbox: Sandbox) -> None:
    proc = thaw.run("--", "no-such-program")
    assert proc.returncode == 127 and b"no-such-program" in proc.stderr
    proc = thaw.run("--", "/etc/passwd")
    assert proc.returncode == 126 and b"/etc/passwd" in proc.stderr
    result = sandbox.exec("/nonexistent/program")
    assert result.error is not None and result.error[:2] == (3, errno.ENOENT)
    result = sandbox.exec("/etc")
    assert result.error is not None and result.error[:2] == (3, errno.EACCES)
    # A program that exits with 127 by itself is not a spawn failure.
    result = sandbox.exec("sh", "-c", "exit 127")
    assert result.error is None and result.value == 127


def test_no_shell_between(thaw: Thaw) -> None:
    words = ["a b", "$HOME", "*", "'", '"', "\\", "", "ünïcode", "-n"]
    proc = thaw.run("--", "python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words)
    assert proc.stdout.decode().strip() == ascii(words)


def test_environment_is_what_was_given(sandbox: Sandbox, thaw: Thaw) -> None:
    result = sandbox.exec("env", env={"A": "1", "B": "two words"})
    lines = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert lines.pop("PATH").startswith("/")
    assert lines == {"A": "1", "B": "two words"}
    proc = thaw.run("-e", "X=y=z", "--", "sh", "-c", 'printf %s "$X"')
    assert proc.stdout == b"y=z"


def test_cwd_user_and_their_failures(thaw: Thaw, sandbox: Sandbox) -> None:
    proc = thaw.sh("pwd; id -u; id -g; id -G", "-w", "/usr/bin", "-u", "1234:5678")
    assert proc.stdout == b"/usr/bin\n1234\n5678\n5678\n", proc.stderr
    result = sandbox.exec("true", cwd="/no/such/folder")
    assert result.error is not None and result.error[:2] == (2, errno.ENOENT)
    proc = thaw.run("-w", "/no/such/folder", "--", "true")
    assert proc.returncode == 125 and b"/no/such/folder" in proc.stderr


def test_stdin_is_empty_unless_asked_for(thaw: Thaw) -> None:
    proc = thaw.run("--", "wc", "-c", stdin=b"must not arrive")
    assert proc.stdout.strip() == b"0"
    proc = thaw.run("-i", "--", "cat", stdin=b"must arrive\0\xff")
    assert proc.stdout == b"must arrive\0\xff"


def test_100_mib_in(thaw: Thaw) -> None:
    data = os.urandom(MIB) * 100
    proc = thaw.run("-i", "--", "sha256sum", stdin=data)
    assert proc.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_100_mib_out(thaw: Thaw) -> None:
    script = "import os,sys,hashlib\nd=os.urandom(1<<20)\nh=hashlib.sha256()\n" + (
        "for i in range(100):\n sys.stdout.buffer.write(d); h.update(d)\n"
        "sys.stdout.flush(); print(h.hexdigest(), file=sys.stderr)"
    )
    proc = thaw.run("--", "python3", "-c", script)
    assert proc.returncode == 0 and len(proc.stdout) == 100 * MIB
    assert hashlib.sha256(proc.stdout).hexdigest() == proc.stderr.decode().strip()


def test_both_ways_at_once(thaw: Thaw) -> None:
    data = os.urandom(MIB) * 16
    proc = thaw.run("-i", "--", "cat", stdin=data)
    assert hashlib.sha256(proc.stdout).digest() == hashlib.sha256(data).digest()


def test_1000_in_a_row(sandbox: Sandbox) -> None:
    before = sandbox.exec("sh", "-c", "ls /proc/1/fd | wc -l; ls -d /sys/fs/cgroup/exec/*/ | wc -l")
    for number in range(1000):
        result = sandbox.exec("/bin/echo", str(number))
        assert (result.value, bytes(result.stdout)) == (0, f"{number}\n".encode()), number
    after = sandbox.exec("sh", "-c", "ls /proc/1/fd | wc -l; ls -d /sys/fs/cgroup/exec/*/ | wc -l")
    assert after.stdout == before.stdout


def test_50_at_once(sandbox: Sandbox) -> None:
    barrier = threading.Barrier(50)

    def one(number: int) -> tuple[int | None, bytes]:
        barrier.wait()
        result = sandbox.exec("sh", "-c", f"head -c 20000 /dev/zero | tr '\\0' x; exit {number}")
        return result.value, bytes(result.stdout)

    with ThreadPoolExecutor(50) as pool:
        for number, (code, output) in enumerate(pool.map(one, range(50))):
            assert code == number and output == b"x" * 20000


def test_slow_reader_stalls_only_itself(sandbox: Sandbox) -> None:
    with shim.connect(sandbox.vsock) as slow:
        slow.sendall(
            shim.frame(shim.EXEC, shim.exec_payload(["head", "-c", str(20 * MIB), "/dev/zero"]))
        )
        for number in range(5):
            assert bytes(sandbox.exec("echo", str(number)).stdout) == f"{number}\n".encode()
        result = shim.collect(slow)
    assert len(result.stdout) == 20 * MIB and result.value == 0


def test_client_that_vanishes_kills_the_whole_command(sandbox: Sandbox) -> None:
    with shim.connect(sandbox.vsock) as sock:
        script = "sleep 1001 & setsid sleep 1002 & echo ready; sleep 1003"
        sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(["sh", "-c", script])))
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                assert payload == b"ready\n"
                break
    deadline = time.monotonic() + 30
    while sandbox.exec("pgrep", "-f", "^sleep 100[123]").stdout:
        assert time.monotonic() < deadline, "processes outlive their client"


def test_half_close_is_eof_not_a_kill(sandbox: Sandbox) -> None:
    import socket

    with shim.connect(sandbox.vsock) as sock:
        script = "cat; sleep 0.2; echo after"
        sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(["sh", "-c", script], stdin=True)))
        sock.sendall(shim.frame(shim.STDIN, b"data\n"))
        sock.shutdown(socket.SHUT_WR)
        result = shim.collect(sock)
    assert bytes(result.stdout) == b"data\nafter\n" and result.value == 0


def test_grandchild_does_not_hold_up_the_exit(sandbox: Sandbox) -> None:
    start = time.monotonic()
    result = sandbox.exec("sh", "-c", "sleep 1000 & echo done", drain_ms=300)
    assert bytes(result.stdout) == b"done\n" and result.value == 0 and result.drained == 0
    assert time.monotonic() - start < 60
    assert not sandbox.exec("pgrep", "-f", "^sleep 1000").stdout


def test_signal_reaches_the_command(sandbox: Sandbox) -> None:
    import struct

    script = "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done"
    output = b""
    with shim.connect(sandbox.vsock) as sock:
        sock.sendall(shim.frame(shim.EXEC, shim.exec_payload(["sh", "-c", script])))
        for kind, payload in shim.frames(sock):
            if kind == shim.STDOUT:
                output += payload
                if payload == b"ready\n":
                    sock.sendall(shim.frame(shim.SIGNAL, struct.pack("<I", signal.SIGUSR1)))
            if kind == shim.EXIT:
                assert struct.unpack("<III", payload)[:2] == (shim.EXIT_CODE, 9)
                break
    assert output == b"ready\ngot\n"


def test_client_signal_is_forwarded(thaw: Thaw) -> None:
    script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    proc = subprocess.Popen(
        [str(BIN / "thaw"), "run", thaw.template, "--", "sh", "-c", script], stdout=subprocess.PIPE
    )
    assert proc.stdout is not None and proc.stdout.readline() == b"ready\n"
    proc.send_signal(signal.SIGTERM)
    assert proc.stdout.read() == b"got\n"
    assert proc.wait(60) == 5


def test_timeout(thaw: Thaw) -> None:
    proc = thaw.run("--timeout", "1", "--", "sh", "-c", "echo partial; sleep 1000")
    assert proc.returncode == 124 and proc.stdout == b"partial\n"


def test_malformed_requests_are_refused_and_harm_nobody(sandbox: Sandbox) -> None:
    bad = [
        shim.frame(99),
        shim.frame(shim.STDIN, b"before exec"),
        shim.frame(shim.EXEC, b"short"),
        shim.frame(shim.EXEC, shim.exec_payload(["true"]) + b"trailing\0"),
        shim.frame(shim.EXEC, shim.exec_payload(["true"])[:-1]),
        shim.frame(shim.EXEC, shim.exec_payload([])),
        b"\xff\xff\xff\xff\x01\x01\x00\x00",
        b"\x00\x00\x00\x00\x01\x02\x00\x00",
    ]
    for data in bad:
        with shim.connect(sandbox.vsock) as sock:
            sock.sendall(data)
            result = shim.collect(sock)
            assert result.error is not None and result.error[0] == 0, data
            assert result.error[2], "an error says what was wrong"
    assert sandbox.exec("true").value == 0
