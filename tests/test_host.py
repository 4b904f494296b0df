# SPDX-License-Identifier: Apache-2.0
"""Tests of the emulated test host (tests/host), from outside it.

They use a host of their own, started from a copy of tests/host, so that they can kill it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOST = Path(__file__).resolve().parent / "host"
HOST_FAILED = 120
KVM_PROBE = """
import fcntl, os
kvm = os.open("/dev/kvm", os.O_RDWR)
version = fcntl.ioctl(kvm, 0xAE00, 0)
vm = fcntl.ioctl(kvm, 0xAE01, 0)
vcpu = fcntl.ioctl(vm, 0xAE41, 0)
print(version, vm > 0, vcpu > 0)
"""


class Checkout:
    """A checkout that holds nothing but tests/host, and its test host."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.host = top / "tests/host"
        shutil.copytree(HOST, self.host, ignore=shutil.ignore_patterns("__pycache__"))
        self.env = dict(os.environ)
        self.env |= {"THAW_TEST_HOST": "emulated", "THAW_TEST_HOST_MEM_MB": "1024"}
        self.env["XDG_RUNTIME_DIR"] = str(top / "run")
        (top / "run").mkdir(mode=0o700)

    @contextlib.contextmanager
    def start(self, *argv: str | bytes, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
        """`run ARGV...` with pipes for its streams unless OPTIONS say otherwise."""
        options = {"stdin": subprocess.DEVNULL, "env": self.env, "cwd": self.top} | options
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        with subprocess.Popen([self.host / "run", "--", *argv], **options) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def run(
        self, *argv: str | bytes, data: bytes | None = None, **options: object
    ) -> tuple[int, bytes, bytes]:
        """The status, stdout and stderr of `run ARGV...`; DATA is its standard input."""
        if data is not None:
            options["stdin"] = subprocess.PIPE
        with self.start(*argv, **options) as process:
            out, err = process.communicate(data, timeout=60)
        return process.returncode, out, err

    def output(self, *argv: str) -> str:
        status, out, err = self.run(*argv)
        assert status == 0, err
        return out.decode()

    def runtime_dir(self) -> Path:
        (found,) = (self.top / "run").glob("thaw-testhost-*[!.lock]")
        return found

    def state_disk(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thaw"
        key = self.runtime_dir().name.rpartition("-")[2]
        return cache / "testhost-state" / f"{key}.ext4"

    def state(self) -> dict:
        return json.loads((self.runtime_dir() / "state.json").read_text())

    def stop(self) -> int:
        return subprocess.run([self.host / "stop"], env=self.env, timeout=60).returncode

    def count(self, command: str) -> int:
        """How many processes in the host run COMMAND."""
        return self.output("ps", "-eo", "args").splitlines().count(command)

    def wait_for(self, command: str, count: int) -> None:
        end_s = time.monotonic() + 15
        while self.count(command) != count:
            assert time.monotonic() < end_s, f"not {count} times {command}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    if os.geteuid() != 0:
        pytest.skip("the test host's image is built as root")
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    status, _, err = made.run("true")
    assert status == 0, err.decode()
    disk = made.state_disk()
    yield made
    made.stop()
    disk.unlink(missing_ok=True)
    disk.with_suffix(".lock").unlink(missing_ok=True)


def test_streams_and_status(checkout: Checkout) -> None:
    got = checkout.run("sh", "-c", "cat; echo err >&2; exit 7", data=b"in\0\xff")
    assert got == (7, b"in\0\xff", b"err\n")


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["nosuch"], 127),
        (["/etc/passwd"], 126),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["sh", "-c", "exit 255"], 255),
    ],
)
def test_status(checkout: Checkout, argv: list[str], status: int) -> None:
    assert checkout.run(*argv)[0] == status


def test_arguments_are_bytes(checkout: Checkout) -> None:
    status, out, _ = checkout.run("printf", "%s|", b"a b", b"\xff\xfe", b"", b"$HOME")
    assert (status, out) == (0, b"a b|\xff\xfe||$HOME|")


def test_environment_and_folder(checkout: Checkout) -> None:
    env = checkout.env | {"THAW_X": "a b", "SECRET": "1", "MAKEFLAGS": "-k --jobserver-auth=3,4"}
    script = 'pwd; echo "$THAW_X|$SECRET|$MAKEFLAGS|$THAW_TEST_HOST|${PATH%%:*}"'
    folder = checkout.top / "tests"
    _, out, _ = checkout.run("sh", "-c", script, env=env, cwd=folder)
    assert out.decode().splitlines() == [str(folder), f"a b||-k||{checkout.top}/build/release"]
    assert checkout.run("pwd", cwd="/")[1].decode().strip() == str(checkout.top)


def test_kvm_works(checkout: Checkout) -> None:
    assert checkout.output("python3", "-c", KVM_PROBE) == "12 True True\n"


def test_large_streams_both_ways(checkout: Checkout) -> None:
    block = os.urandom(1 << 20)
    count = 100
    sent, got = hashlib.sha256(), hashlib.sha256()
    with checkout.start("cat", stdin=subprocess.PIPE) as process:
        feeder = os.fork()
        if feeder == 0:
            process.stdout.close()
            for _ in range(count):
                process.stdin.write(block)
            process.stdin.flush()
            os._exit(0)
        process.stdin.close()
        while data := process.stdout.read(1 << 20):
            got.update(data)
        os.waitpid(feeder, 0)
        err = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    for _ in range(count):
        sent.update(block)
    assert process.returncode == 0, err.decode()
    assert got.hexdigest() == sent.hexdigest()
    assert usage.ru_maxrss < 80 << 10, "the client's memory grew with the data"


def test_concurrent_runs(checkout: Checkout) -> None:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(checkout.start("sh", "-c", f"echo {n}; exit {n}"))
            for n in range(10)
        ]
        for number, process in enumerate(processes):
            out, _ = process.communicate(timeout=60)
            assert (process.returncode, out) == (number, b"%d\n" % number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_signals_are_forwarded(checkout: Checkout, number: int) -> None:
    script = "trap 'exit 33' INT TERM QUIT; echo ready; while :; do sleep 0.1; done"
    with checkout.start("sh", "-c", script) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == 33


def test_killed_client_ends_its_command(checkout: Checkout) -> None:
    script = "trap '' HUP TERM; (sleep 4321 & wait) & echo ready; wait"
    with checkout.start("sh", "-c", script) as process:
        assert process.stdout.readline() == b"ready\n"
        assert checkout.count("sleep 4321") == 1
        process.kill()
    checkout.wait_for("sleep 4321", 0)


def test_unread_input_does_not_hold_the_exit(checkout: Checkout) -> None:
    with checkout.start("sh", "-c", "exit 3", stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=30) == 3


def test_closed_input(checkout: Checkout) -> None:
    command = f"exec <&-; exec {checkout.host}/run -- sh -c 'cat; echo end'"
    out = subprocess.run(
        ["sh", "-c", command], env=checkout.env, stdout=subprocess.PIPE, timeout=60, check=True
    ).stdout
    assert out == b"end\n"


def test_closed_output_reaches_the_command(checkout: Checkout) -> None:
    with checkout.start("yes") as process:
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=30) == 128 + signal.SIGPIPE


def test_stalled_output_does_not_hold_signals(checkout: Checkout) -> None:
    with checkout.start("sh", "-c", "trap 'exit 9' TERM; yes & wait") as process:
        assert process.stdout.read(2) == b"y\n"
        time.sleep(1)
        process.terminate()
        while process.stdout.read(1 << 20):
            pass
        assert process.wait(timeout=30) == 9


def test_background_process_holds_the_exit_for_a_bounded_time(checkout: Checkout) -> None:
    start_s = time.monotonic()
    status, out, _ = checkout.run("sh", "-c", "sleep 5432 & echo out; exit 5")
    assert (status, out) == (5, b"out\n")
    assert time.monotonic() - start_s < 10
    assert checkout.count("sleep 5432") == 1
    checkout.run("pkill", "-f", "sleep 5432")


def test_files_are_the_same_at_once(checkout: Checkout) -> None:
    path = checkout.top / "shared.txt"
    for number in range(3):
        path.write_text(f"outer {number}\n")
        assert checkout.output("cat", str(path)) == f"outer {number}\n"
        replacement = path.with_suffix(".new")
        replacement.write_text(f"replaced {number}\n")
        replacement.rename(path)
        assert checkout.output("cat", "shared.txt") == f"replaced {number}\n"
    checkout.output("sh", "-c", "echo inner > shared.txt")
    assert path.read_text() == "inner\n"
    path.unlink()
    assert checkout.run("test", "-e", str(path))[0] == 1


def test_programs_run_from_the_checkout(checkout: Checkout) -> None:
    program = checkout.top / "build/release/thaw-probe"
    program.parent.mkdir(parents=True)
    for status in (3, 4):
        program.write_text(f"#!/bin/sh\nexit {status}\n")
        program.chmod(0o755)
        assert checkout.run("thaw-probe")[0] == status
    shutil.copy(Path("/bin/true").resolve(), checkout.top / "true")
    assert checkout.run("./true")[0] == 0
    script = "import mmap; f = open('true', 'r+b'); print(mmap.mmap(f.fileno(), 0, flags=2)[1:4])"
    assert checkout.output("python3", "-c", script) == "b'ELF'\n"


def read_pty(fd: int, mark: bytes) -> bytes:
    data = b""
    end_s = time.monotonic() + 30
    while mark not in data:
        assert select.select([fd], [], [], max(0.0, end_s - time.monotonic()))[0], data
        try:
            data += os.read(fd, 4096)
        except OSError:
            break
    return data


def test_shell_on_a_terminal(checkout: Checkout) -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(checkout.top)
        os.execve(checkout.host / "run", ["run"], checkout.env | {"TERM": "dumb"})
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        os.write(master, b"stty size; tty; echo x$((40+2))\n")
        text = read_pty(master, b"x42")
        assert b"33 101" in text
        assert b"/dev/pts/" in text
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 102, 0, 0))
        os.write(master, b"sleep 0.3; stty size\n")
        assert b"44 102" in read_pty(master, b"44 102")
        os.write(master, b"sleep 6543\n")
        checkout.wait_for("sleep 6543", 1)
        os.write(master, b"\x03")
        checkout.wait_for("sleep 6543", 0)
        os.write(master, b"exit 21\n")
        read_pty(master, b"\0 no such text")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 21
    finally:
        os.close(master)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_second_start_is_none(checkout: Checkout) -> None:
    before = checkout.state()
    assert checkout.run("true")[2] == b""
    assert checkout.state() == before


def test_a_second_host_on_the_same_disk_is_refused(checkout: Checkout, tmp_path: Path) -> None:
    status, _, err = checkout.run("true", env=checkout.env | {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert status == HOST_FAILED
    assert b"is in use by a host" in err
    assert checkout.run("true")[0] == 0


def test_a_stranger_gets_no_command(checkout: Checkout) -> None:
    """Without the token the agent closes the connection."""
    other = checkout.runtime_dir() / "token"
    right = other.read_text()
    try:
        other.write_text("00" * 32)
        status, _, err = checkout.run("true")
    finally:
        other.write_text(right)
    assert status == HOST_FAILED
    assert b"test host died" in err


def test_killed_host_is_reported_and_replaced(checkout: Checkout) -> None:
    checkout.output("sh", "-c", "echo kept > /var/lib/thaw/kept; sync")
    with checkout.start("sh", "-c", "echo ready; sleep 60") as process:
        assert process.stdout.readline() == b"ready\n"
        os.kill(checkout.state()["qemu"]["pid"], signal.SIGKILL)
        _, err = process.communicate(timeout=30)
    assert process.returncode == HOST_FAILED
    assert b"test host died" in err
    assert b"agent ready" in err, "the console's tail is missing"
    status, out, err = checkout.run("cat", "/var/lib/thaw/kept")
    assert (status, out) == (0, b"kept\n")
    assert b"it had died: starting anew" in err


def test_hung_host_is_reported_and_replaced(checkout: Checkout) -> None:
    env = checkout.env | {"THAW_TEST_HOST_HANG_S": "8"}
    with checkout.start("sh", "-c", "echo ready; sleep 60", env=env) as process:
        assert process.stdout.readline() == b"ready\n"
        pid = checkout.state()["qemu"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        _, err = process.communicate(timeout=30)
    assert process.returncode == HOST_FAILED
    assert b"test host hung" in err
    checkout.state_disk().write_bytes(b"not a disk" * 1000)
    status, _, err = checkout.run("test", "!", "-e", "/var/lib/thaw/kept")
    assert status == 0, err.decode()
    assert b"the state disk is damaged" in err
    assert b"it does not answer: restarting" in err
    assert checkout.state()["qemu"]["pid"] != pid


def test_half_dead_host_is_a_hung_one(checkout: Checkout) -> None:
    """One process of the host looks after every processor; when it gets nowhere, pings stop."""
    env = checkout.env | {"THAW_TEST_HOST_HANG_S": "8"}
    stop = "read -r first rest < /proc/1/task/1/children; kill -STOP $first; sleep 120"
    result = subprocess.run(
        [checkout.host / "run", "sh", "-c", stop], env=env, capture_output=True, timeout=90
    )
    assert result.returncode == HOST_FAILED, result
    assert b"test host hung" in result.stderr
    assert checkout.run("true")[0] == 0


def is_alive(pid: int) -> bool:
    """A zombie that nobody has waited for yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_stop(checkout: Checkout) -> None:
    checkout.output("sh", "-c", "echo kept > /var/lib/thaw/kept")
    state = checkout.state()
    pids = [state["qemu"]["pid"], *(helper["pid"] for helper in state["helpers"])]
    runtime_dir = checkout.runtime_dir()
    assert checkout.stop() == 0
    assert not runtime_dir.exists()
    assert not any(is_alive(pid) for pid in pids)
    assert checkout.stop() == 0
    status, out, err = checkout.run("cat", "/var/lib/thaw/kept")
    assert (status, out) == (0, b"kept\n")
    assert b"e2fsck" not in err, "the state disk was not unmounted cleanly"


def test_failed_and_interrupted_builds_leave_nothing(checkout: Checkout, tmp_path: Path) -> None:
    tool = tmp_path / "bin/mmdebstrap"
    tool.parent.mkdir()
    env = checkout.env | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    env["PATH"] = f"{tool.parent}:{env['PATH']}"
    tool.write_text("#!/bin/sh\necho no such suite; exit 9\n")
    tool.chmod(0o755)
    result = subprocess.run([checkout.host / "build"], env=env, capture_output=True, timeout=30)
    assert result.returncode == HOST_FAILED
    assert b"no such suite" in result.stderr
    assert not list((tmp_path / "cache/thaw").glob("testhost-*[!k]"))

    tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 60\n")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [checkout.host / "build"], env=env, stderr=subprocess.DEVNULL
        ) as process:
            while not (tmp_path / "begun").exists():
                time.sleep(0.05)
            process.send_signal(number)
            process.wait(timeout=30)
        (tmp_path / "begun").unlink()
        left = list((tmp_path / "cache/thaw").glob("testhost-*[!k]"))
        assert all(path.suffix == ".tmp" for path in left)
        assert number == signal.SIGKILL or not left
    # What the killed build left goes with the next one.
    tool.write_text("#!/bin/sh\nexit 9\n")
    subprocess.run([checkout.host / "build"], env=env, capture_output=True, timeout=30)
    assert not list((tmp_path / "cache/thaw").glob("testhost-*[!k]"))
