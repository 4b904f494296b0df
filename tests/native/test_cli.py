# SPDX-License-Identifier: Apache-2.0
"""The thaw command with a stand-in for thaw-vmm and the real shim; tests/vm has the real one."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
THAW = TOP / "build/release/thaw"
FAKE = TOP / "tests/native/fake_vmm.py"
WAIT_S = 30

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not THAW.exists(), reason=f"{THAW} is not built"),
]


class Cli:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.report = folder / "fake.json"
        self.guest = folder / "guest"
        (self.state / "templates/debian").mkdir(parents=True)
        self.env = {
            "PATH": os.environ["PATH"],
            "THAW_STATE": str(self.state),
            "THAW_SOCKET": "",  # no thawd that this machine may have
            "THAW_VMM": str(FAKE),
            "THAW_FAKE_LOG": str(self.report),
            "THAW_GUEST_DIR": str(self.guest),
            "SECRET": "must not reach the VMM",
        }

    def popen(self, *args: str, **kw: object) -> subprocess.Popen[bytes]:
        fake = {key: str(kw.pop(key)) for key in list(kw) if key.startswith("THAW_")}
        options: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **kw,
        }
        return subprocess.Popen([str(THAW), *args], env={**self.env, **fake}, **options)  # type: ignore[call-overload]

    def __call__(
        self, *args: str, stdin: bytes | None = None, **kw: object
    ) -> subprocess.CompletedProcess[bytes]:
        if stdin is not None:
            kw["stdin"] = subprocess.PIPE
        proc = self.popen(*args, **kw)
        out, err = proc.communicate(stdin, timeout=WAIT_S)
        return subprocess.CompletedProcess(args, proc.returncode, out, err)

    def run(self, *args: str, **kw: object) -> subprocess.CompletedProcess[bytes]:
        return self("run", "debian", *args, **kw)

    def sh(self, script: str, *options: str, **kw: object) -> subprocess.CompletedProcess[bytes]:
        return self.run(*options, "--", "sh", "-c", script, **kw)

    def make_guest(self) -> None:
        self.guest.mkdir()
        for name in ("vmlinux", "initramfs.cpio"):
            (self.guest / name).write_bytes(name.encode())
        (self.guest / "root.erofs").write_bytes(os.urandom(3 << 20))
        guest = {"kernel": "6.12.1-test", "image": "debian", "digest": "0123456789abcdef"}
        (self.guest / "guest.json").write_text(json.dumps(guest))


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def fakes() -> set[int]:
    """Processes of the stand-in and of the shims it started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(FAKE).encode() in words or b"--serve-fd" in words:
            found.add(int(path.parent.name))
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def eventually(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_streams_apart_and_code(cli: Cli) -> None:
    proc = cli.sh("echo out; echo err >&2; exit 7")
    assert (proc.returncode, proc.stdout, proc.stderr) == (7, b"out\n", b"err\n")


def test_exit_codes(cli: Cli) -> None:
    assert cli.sh("kill -KILL $$").returncode == 137
    assert cli.sh("exit 255").returncode == 255
    proc = cli.run("--", "no-such-program")
    assert proc.returncode == 127 and b"no-such-program" in proc.stderr
    proc = cli.run("--", "/etc/passwd")
    assert proc.returncode == 126 and b"/etc/passwd" in proc.stderr
    proc = cli.run("-w", "/no/such", "--", "true")
    assert proc.returncode == 125 and b"/no/such" in proc.stderr


def test_timeout_counts_from_the_start(cli: Cli) -> None:
    start = time.monotonic()
    proc = cli.sh("echo partial; sleep 100", "--timeout", "600ms")
    assert proc.returncode == 124 and proc.stdout == b"partial\n" and b"time-out" in proc.stderr
    assert 0.5 < time.monotonic() - start < 10
    # Also when the guest never answers.
    assert cli.sh("true", "--timeout", "300ms", THAW_FAKE="hang").returncode == 124


def test_stdin(cli: Cli) -> None:
    data = os.urandom(5 << 20)
    proc = cli.run("-i", "--", "sha256sum", stdin=data)
    assert proc.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert cli.run("--", "wc", "-c", stdin=b"not this").stdout == b"0\n"
    assert cli.run("-i", "--", "cat", stdin=b"").stdout == b""
    # A closed stdin is an empty one.
    proc = cli.popen(
        "run", "debian", "-i", "--", "wc", "-c", stdin=None, preexec_fn=lambda: os.close(0)
    )
    assert proc.communicate(timeout=WAIT_S)[0] == b"0\n" and proc.returncode == 0


def test_closed_standard_fds(cli: Cli) -> None:
    """The first file thaw opens must not become its stdout."""

    def close_all() -> None:
        for fd in (0, 1, 2):
            os.close(fd)

    proc = cli.popen("run", "debian", "--", "sh", "-c", "echo x; exit 3", preexec_fn=close_all)
    assert proc.wait(WAIT_S) == 3


def test_reader_goes_away(cli: Cli) -> None:
    before = fakes()
    proc = cli.popen("run", "debian", "--", "yes")
    assert proc.stdout is not None and proc.stdout.read(2) == b"y\n"
    proc.stdout.close()
    assert proc.wait(WAIT_S) == 128 + signal.SIGPIPE
    assert eventually(lambda: fakes() == before)


def test_environment_user_and_folder(cli: Cli) -> None:
    proc = cli.sh(
        "env; pwd; id -u; id -g", "-e", "A=b c", "-e", "SECRET", "-w", "/tmp", "-u", "12:34"
    )
    lines = set(proc.stdout.decode().splitlines())
    assert {
        "A=b c",
        "SECRET=must not reach the VMM",
        "HOME=/",
        "LANG=C.UTF-8",
        "/tmp",
        "12",
        "34",
    } <= lines
    assert not any(line.startswith("THAW_") for line in lines)


def test_what_the_vmm_is_given(cli: Cli) -> None:
    cli.popen("run", "debian", "--hostname", "h", "--", "true", pass_fds=[]).wait(WAIT_S)
    read_fd, write_fd = os.pipe()
    # An fd that thaw has inherited must not reach the VMM.
    proc = cli.popen(
        "run", "debian", "--strategy", "copy", "--hostname", "h", "--", "true", pass_fds=[write_fd]
    )
    assert proc.wait(WAIT_S) == 0
    os.close(read_fd)
    os.close(write_fd)
    report = json.loads(cli.report.read_text())
    template = str(cli.state / "templates/debian")
    assert report["argv"][1:] == [
        *("restore", template, "--strategy", "copy", "--disk-dir", str(cli.state / "scratch")),
        *("--ctl-fd", "3", "--hostname", "h", "--request-fd", "4"),
    ]
    fds = {fd: path for fd, path in report["fds"].items() if not path.startswith("/proc/")}
    assert set(fds) == {"0", "1", "2", "3", "4"}, fds
    assert fds["0"] == fds["1"] == "/dev/null" and fds["3"].startswith("socket:")
    assert "SECRET" not in report["env"] and "PATH" not in report["env"]
    assert report["sid"]


def test_options_of_the_restore_are_handed_on(cli: Cli) -> None:
    options = ["--populate", "read", "--prefault", "off", "--huge", "thp", "--threads", "3"]
    assert cli.popen("run", "debian", *options, "--", "true").wait(WAIT_S) == 0
    argv = json.loads(cli.report.read_text())["argv"]
    assert argv[argv.index("--ctl-fd") + 2 : argv.index("--request-fd")] == options


def test_request_too_long_for_the_mailbox(cli: Cli) -> None:
    for size in (50_000, 57_344, 100_000):
        proc = cli.run("-e", "A=" + "a" * size, "--", "sh", "-c", 'printf %s "$A" | wc -c')
        assert proc.stdout.strip() == str(size).encode(), proc
        assert ("--request-fd" in json.loads(cli.report.read_text())["argv"]) == (size < 57_344)


def test_signal_ends_a_run_whose_guest_does_not_come_up(cli: Cli) -> None:
    proc = cli.popen("run", "debian", "--", "true", THAW_FAKE="hang")
    assert eventually(cli.report.exists)
    time.sleep(0.2)
    proc.send_signal(signal.SIGTERM)
    assert proc.wait(WAIT_S) == 128 + signal.SIGTERM


def test_json(cli: Cli, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    assert cli.sh("exit 3", "--json", str(report)).returncode == 3
    data = json.loads(report.read_text())
    assert data["template"] == "debian" and data["pool"] == "none" and data["strategy"] == "ws"
    assert data["kvm"] in ("hardware", "emulated")
    clocks = data["clocks_ms"]
    assert clocks["c1"] == 1.0 and clocks["c2"] == 3.0 and clocks["c3"] == 4.0
    assert clocks["c3"] < clocks["c4"] and clocks["c5"] > 0
    assert data["faults"]["minor"] > 0 and data["bytes_read"] is not None
    assert data["exit"] == {"code": 3, "signal": None}
    assert [name for name in names(tmp_path) if name.startswith("r.json")] == ["r.json"]
    cli.sh("kill -9 $$", "--json", str(report))
    assert json.loads(report.read_text())["exit"] == {"code": None, "signal": 9}
    cli.run("--json", str(report), "--", "no-such", THAW_FAKE_NOTE="mmap+pread")
    data = json.loads(report.read_text())
    assert data["exit"] == {"code": 127, "signal": None} and data["strategy"] == "mmap+pread"
    # Not writable: an error only if the command was none.
    bad = str(tmp_path / "no/r.json")
    assert cli.sh("exit 0", "--json", bad).returncode == 125
    assert cli.sh("exit 9", "--json", bad).returncode == 9


def test_signals_are_forwarded(cli: Cli) -> None:
    script = "for s in INT TERM HUP QUIT; do trap \"echo $s\" $s; done; echo up; " \
        "while :; do sleep 0.02; done"  # fmt: skip

    def heed() -> None:
        # A run of the tests in a script's background has some of them ignored, and that is kept.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    proc = cli.popen("run", "debian", "--", "bash", "-c", script, preexec_fn=heed)
    assert proc.stdout is not None and proc.stdout.readline() == b"up\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        proc.send_signal(number)
        assert proc.stdout.readline().decode().strip() == number.name.removeprefix("SIG")
    proc.kill()
    proc.wait(WAIT_S)


def test_ignored_signals_stay_ignored(cli: Cli) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    proc = cli.popen(
        "run", "debian", "--", "sh", "-c", "echo up; sleep 0.3; echo end", preexec_fn=ignore
    )
    assert proc.stdout is not None and proc.stdout.readline() == b"up\n"
    proc.send_signal(signal.SIGHUP)
    assert proc.stdout.readline() == b"end\n" and proc.wait(WAIT_S) == 0


def test_nothing_is_left(cli: Cli) -> None:
    before = fakes()
    for number in range(20):
        assert cli.sh(f"exit {number}").returncode == number
    assert eventually(lambda: fakes() == before)
    assert names(cli.state / "scratch") == []
    proc = cli.popen("run", "debian", "--", "sh", "-c", "echo up; sleep 1000")
    assert proc.stdout is not None and proc.stdout.readline() == b"up\n"
    proc.kill()
    proc.wait(WAIT_S)
    assert eventually(lambda: fakes() == before)


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("usage", ["exit status 2", "a word on stderr"]),
        ("bad-state", ["T/state: digest mismatch", "set-up failed"]),
        ("die-at-connect", ["killed by signal 9"]),
        ("crash", ["reset or crashed", "triple fault on vCPU 0"]),
        ("refuse", ["stream"]),
        ("garbage", ["protocol"]),
    ],
)
def test_failures_of_the_vmm_are_told(cli: Cli, fake: str, words: list[str]) -> None:
    proc = cli.sh("true", THAW_FAKE=fake)
    assert proc.returncode == 125 and proc.stdout == b""
    for word in words:
        assert word in proc.stderr.decode(), proc.stderr


def test_no_vmm(cli: Cli) -> None:
    proc = cli.sh("true", THAW_VMM="/no/such/vmm")
    assert proc.returncode == 125 and b"/no/such/vmm" in proc.stderr


@pytest.mark.parametrize(
    ("args", "status", "word"),
    [
        (["run", "gone", "--", "x"], 125, "no template 'gone'"),
        (["run", "../etc", "--", "x"], 125, "'../etc'"),
        (["run", "debian", "x"], 127, "x: No such file"),
        (["run", "-xit", "debian", "x"], 125, "'-x'"),
        (["run", "debian", "--json", "f", "--name", "a", "x"], 125, "--name"),
        (["run", "debian", "--name", "a", "x"], 125, "systemctl start thawd"),
        (["create", "debian"], 1, "create needs thawd"),
        (["logs", "a"], 1, "logs needs thawd"),
        (["attach", "a"], 125, "attach needs thawd"),
        (["stop"], 2, "NAME is missing"),
        (["kill", "a", "-s", "NOPE"], 2, "--signal"),
        (["completion", "csh"], 2, "'csh'"),
        (["run", "debian"], 125, "command is missing"),
        (["run", "debian", "--nope", "--", "x"], 125, "--nope"),
        (["nope"], 2, "'nope'"),
        (["template"], 2, "Usage"),
        (["template", "nope"], 2, "'nope'"),
        (["template", "build", "Bad"], 2, "'Bad'"),
        (["template", "build", "x", "--vcpus", "9"], 2, "--vcpus"),
        (["template", "build", "x", "--memory", "100M"], 2, "--memory"),
        (["template", "build", "x", "--from", "debian", "--vcpus", "2"], 2, "--from"),
        (["template", "build", "x", "--strategy", "mmap"], 2, "--strategy"),
        (["template", "build", "x", "--warm", "a"], 2, "';'"),
        (["template", "inspect", "gone"], 1, "no template 'gone'"),
        (["template", "rm", "gone"], 1, "gone"),
        (["template", "rm", ".."], 2, "'..'"),
        (["template", "verify", "gone"], 1, "gone"),
        (["doctor", "x"], 2, "'x'"),
    ],
)
def test_usage_errors(cli: Cli, args: list[str], status: int, word: str) -> None:
    proc = cli(*args)
    assert proc.returncode == status and word in proc.stderr.decode(), proc
    assert proc.stdout == b""


def test_help_everywhere(cli: Cli) -> None:
    commands = [
        [], ["template"], ["run"], ["doctor"],
        *(["template", verb] for verb in ("build", "ls", "inspect", "verify", "flatten", "rm")),
        *(["template", verb] for verb in ("export", "import", "pack", "record")),
    ]  # fmt: skip
    for command in commands:
        proc = cli(*command, "--help")
        assert proc.returncode == 0 and proc.stdout.startswith(b"Usage: thaw") and not proc.stderr
    assert cli("help").returncode == 0 and cli("version").stdout.startswith(b"thaw ")
    assert b"mmap" in cli("run", "--help").stdout


@pytest.mark.parametrize(
    "args",
    [["version"], ["help"], ["run", "--help"], ["doctor"], ["template", "ls", "--help"]],
)
def test_lost_output_is_told(cli: Cli, args: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        proc = cli(*args, stdout=full)
    assert proc.returncode == (125 if args[0] == "run" else 1)
    assert b"stdout: No space left on device" in proc.stderr


def test_help_of_one(cli: Cli) -> None:
    assert cli("help", "run").stdout == cli("run", "--help").stdout
    assert cli("template", "help", "rm").stdout == cli("template", "rm", "--help").stdout


def test_completion_knows_every_strategy(cli: Cli) -> None:
    text = cli("run", "--help").stdout.decode()
    known = [line.split()[0] for line in text.split("\nStrategies")[1].splitlines()[1:]]
    script = (
        "source completions/thaw.bash; COMP_WORDS=(thaw run debian --strategy ''); COMP_CWORD=4; "
        '_thaw; echo "${COMPREPLY[@]}"'
    )
    proc = subprocess.run(["bash", "-c", script], cwd=TOP, capture_output=True, text=True)
    assert proc.stdout.split() == known, proc.stderr


def test_rm_refuses_what_is_in_use(cli: Cli) -> None:
    proc = cli.popen("run", "debian", "--", "sh", "-c", "echo up; sleep 1000")
    assert proc.stdout is not None and proc.stdout.readline() == b"up\n"
    rm = cli("template", "rm", "debian")
    assert rm.returncode == 1 and b"in use" in rm.stderr
    proc.kill()
    proc.wait(WAIT_S)
    assert cli("template", "rm", "debian").returncode == 0
    assert names(cli.state / "templates") == []


def test_build(cli: Cli, tmp_path: Path) -> None:
    cli.make_guest()
    recipe = tmp_path / "recipe"
    recipe.write_text(
        json.dumps({"vcpus": 2, "memory_mib": 128, "scratch_mib": 64, "cmdline_extra": "x=y",
                    "warm": [["sh", "-c", "echo from the recipe"]]})
    )  # fmt: skip
    marker = tmp_path / "marker"
    args = [
        "template",
        "build",
        "new",
        "--recipe",
        str(recipe),
        "--warm",
        "touch",
        str(marker),
        ";",
    ]
    proc = cli(*args)
    assert proc.returncode == 0, proc.stderr
    lines = proc.stderr.decode().splitlines()
    for phase in ("root image", "scratch disk", "boot", "warm-up 1/2: sh -c echo from",
                  "warm-up 2/2: touch", "snapshot", "hot set", "done: 1 MiB in "):  # fmt: skip
        assert any(phase in line for line in lines), (phase, lines)
    assert proc.stdout == b"" and marker.exists()
    # /bin/true, sh -c :, python3 -c 0 and the two warm-ups, each in three clones.
    hot = inspect(cli, "new")["hot"]
    assert hot["clones"] == 15 and hot["commands"] == 5 and hot["runs"] >= 1, hot
    assert (hot["recorder"], hot["rule"], hot["threshold"]) == ("pagemap", "half", 8)
    assert hot["read_pages"] == 10 and hot["stability"] == 1.0 and 0.3 < hot["similarity"] < 1
    assert hot["intersection_pages"] == 10 < hot["union_pages"] and hot["record_ms"] > 0
    proc = cli("template", "inspect", "new")
    assert b"recorded    by pagemap in 15 clones with 5 commands" in proc.stdout, proc.stdout
    assert "from the recipe" in (cli.state / "logs/new.log").read_text()
    image = cli.state / "images/0123456789abcdef/root.erofs"
    assert image.read_bytes() == (cli.guest / "root.erofs").read_bytes()
    argv = json.loads(cli.report.read_text())["argv"]
    options = dict(zip(argv[2::2], argv[3::2], strict=False))
    assert options["--vcpus"] == "2" and options["--memory"] == str(128 << 20)
    assert options["--root"] == str(image) and options["--disk-size"] == str(64 << 20)
    assert (
        options["--disk-base"] == "/proc/self/fd/4" and options["--guest-kernel"] == "6.12.1-test"
    )
    assert options["--cmdline"].endswith(" x=y") and "console=hvc0" in options["--cmdline"]
    assert names(cli.state / "scratch") == []
    assert names(cli.state / "templates") == ["debian", "new"]
    # It exists now; --replace replaces it, and the image is not copied again.
    proc = cli(*args)
    assert proc.returncode == 1 and b"--replace" in proc.stderr
    before = image.stat().st_ino
    assert cli(*args, "--replace").returncode == 0 and image.stat().st_ino == before


def inspect(cli: Cli, name: str) -> dict[str, Any]:
    proc = cli("template", "inspect", name, "--json")
    assert proc.returncode == 0, proc.stderr
    fields = json.loads(proc.stdout)
    assert isinstance(fields, dict)
    return fields


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        ("hot-fails", b"no hot set was recorded"),
        ("hot-garbage", b"not a hot set"),
        ("hot-outside", b"a run lies outside of memory"),
    ],
)
def test_a_host_that_cannot_record_still_builds(cli: Cli, fake: str, words: bytes) -> None:
    cli.make_guest()
    proc = cli("template", "build", "cold", THAW_FAKE=fake)
    assert proc.returncode == 0 and words in proc.stderr, proc.stderr
    assert b"no hot set was recorded" in proc.stderr
    folder = cli.state / "templates/cold"
    assert (folder / "memory").exists() and not (folder / "hot").exists()
    assert not (folder / ".hot.tmp").exists() and folder.stat().st_mode & 0o777 == 0o500
    assert inspect(cli, "cold")["hot"] is None
    # Asked for by name it is an error; the template is there all the same.
    proc = cli("template", "build", "cold", "--replace", "--recorder", "pagemap", THAW_FAKE=fake)
    assert proc.returncode == 1 and words in proc.stderr, proc.stderr
    assert (folder / "memory").exists() and not (folder / "hot").exists()


def test_hot_rules_and_runs(cli: Cli) -> None:
    cli.make_guest()
    pages = {}
    for rule in ("union", "half", "intersection"):
        args = ("--replace", "--hot-rule", rule, "--hot-runs", "1", "--recorder", "pagemap")
        proc = cli("template", "build", "hot", *args, "--warm", "no-such-command", ";")
        assert proc.returncode == 1, proc.stderr  # the warm-up itself fails
        proc = cli("template", "build", "hot", *args)
        assert proc.returncode == 0, proc.stderr
        hot = inspect(cli, "hot")["hot"]
        assert hot["rule"] == rule and hot["stability"] is None
        pages[rule] = hot["read_pages"] + hot["write_pages"]
        assert pages[rule] >= hot["intersection_pages"]
    assert pages["union"] > pages["half"] >= pages["intersection"] == 10
    for bad in (("--hot-rule", "most"), ("--hot-runs", "0"), ("--hot-runs", "17"),
                ("--recorder", "gdb")):  # fmt: skip
        proc = cli("template", "build", "hot", "--replace", *bad)
        assert proc.returncode == 2 and bad[0].encode() in proc.stderr, proc.stderr


def test_record_again(cli: Cli) -> None:
    cli.make_guest()
    assert cli("template", "build", "new", "--hot-runs", "1").returncode == 0
    folder = cli.state / "templates/new"
    before = (folder / "hot").read_bytes()
    proc = cli("template", "record", "new", "--hot-runs", "2", "--warm", "true", "x", ";")
    assert proc.returncode == 0 and b"hot set: 4 commands, 2 times" in proc.stderr, proc.stderr
    assert inspect(cli, "new")["hot"]["clones"] == 8
    after = (folder / "hot").read_bytes()
    assert before != after and folder.stat().st_mode & 0o777 == 0o500
    # A failure is one here, and leaves what was there.
    proc = cli("template", "record", "new", THAW_FAKE="hot-garbage")
    assert proc.returncode == 1 and b"The template works as before" in proc.stderr, proc.stderr
    assert (folder / "hot").read_bytes() == after and not (folder / ".hot.tmp").exists()
    proc = cli("template", "record", "none")
    assert proc.returncode == 1 and b"no template 'none'" in proc.stderr
    assert cli("template", "record", "new", "--hot-rule", "x").returncode == 2


def test_a_damaged_hot_set_is_told(cli: Cli) -> None:
    cli.make_guest()
    assert cli("template", "build", "new", "--hot-runs", "1").returncode == 0
    path = cli.state / "templates/new/hot"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    proc = cli("template", "inspect", "new")
    assert proc.returncode == 1 and b"/hot: digest mismatch" in proc.stderr


@pytest.mark.skipif(
    any(Path(f"/sys/module/{name}").exists() for name in ("kvm_intel", "kvm_amd")),
    reason="this machine can record by BPF",
)
def test_a_recorder_that_cannot_be_had_is_an_error(cli: Cli) -> None:
    """Before anything was built."""
    cli.make_guest()
    proc = cli("template", "build", "new", "--recorder", "bpf")
    assert proc.returncode == 1 and b"--recorder bpf: needs a KVM with EPT or NPT" in proc.stderr
    assert names(cli.state / "templates") == ["debian"]


def test_build_from(cli: Cli) -> None:
    proc = cli("template", "build", "second", "--from", "debian", "--warm", "true", ";")
    assert proc.returncode == 0, proc.stderr
    argv = json.loads(cli.report.read_text())["argv"]
    assert argv[1:3] == ["restore", str(cli.state / "templates/debian")]
    assert argv[argv.index("--parent") + 1] == "debian"
    assert argv[argv.index("--snapshot") + 1] == str(cli.state / "templates/second")


@pytest.mark.parametrize(
    ("fake", "warm", "words"),
    [
        ("", ["sh", "-c", "echo a last word; exit 4"], ["exit status 4", "a last word"]),
        ("", ["no-such-program"], ["No such file", "warm-up"]),
        ("crash", ["true"], ["reset or crashed", "triple fault"]),
        ("snapshot-fails", ["true"], ["/x/memory: No space left on device"]),
        ("hang", ["true"], ["boot: time-out"]),
        ("usage", ["true"], ["exit status 2", "a word on stderr"]),
    ],
)
def test_build_fails_and_leaves_the_old_one(
    cli: Cli, fake: str, warm: list[str], words: list[str]
) -> None:
    cli.make_guest()
    leftover = cli.state / "templates/.debian.tmp-1-2"
    leftover.mkdir()
    (leftover / "memory").write_bytes(b"x")
    proc = cli(
        *("template", "build", "debian", "--replace", "--warm", *warm, ";"),
        *("--timeout", "1s" if fake == "hang" else "60s"),  # a busy machine is no failure
        THAW_FAKE=fake,
    )
    assert proc.returncode == 1
    for word in words:
        assert word in proc.stderr.decode(), proc.stderr
    assert names(cli.state / "templates") == ["debian"]
    assert names(cli.state / "scratch") == []


def test_a_folder_that_is_being_written_is_left_alone(cli: Cli) -> None:
    """thaw-vmm outlives a killed build for as long as it takes to see that."""
    cli.make_guest()
    (cli.state / "recipe").write_text("{}")
    build = ("template", "build", "x", "--recipe", str(cli.state / "recipe"), "--replace")
    folder = cli.state / "templates/.x.tmp-1-2"
    folder.mkdir()
    (folder / "memory").write_bytes(b"x")
    writer = os.open(folder, os.O_RDONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    assert cli(*build).returncode == 0
    assert (folder / "memory").exists()
    os.close(writer)
    assert cli(*build).returncode == 0
    assert not folder.exists()


def test_one_build_of_a_name_at_a_time(cli: Cli) -> None:
    cli.make_guest()
    first = cli.popen("template", "build", "x", THAW_FAKE="hang")
    lock = cli.state / "templates/.x.build"
    assert eventually(lock.exists)

    def locked() -> bool:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            return False

    assert eventually(locked)
    proc = cli("template", "build", "x")
    assert proc.returncode == 1 and b"being built" in proc.stderr
    first.kill()
    first.wait(WAIT_S)
    # What the killed one left behind does not stand in the way.
    recipe = cli.state / "recipe"
    recipe.write_text("{}")
    assert cli("template", "build", "x", "--recipe", str(recipe)).returncode == 0


def test_recipe_errors_name_file_and_field(cli: Cli, tmp_path: Path) -> None:
    cli.make_guest()
    recipe = tmp_path / "bad.json"
    recipe.write_text('{"memroy_mib": 1}')
    proc = cli("template", "build", "x", "--recipe", str(recipe))
    assert proc.returncode == 1 and f"{recipe}: memroy_mib: unknown field" in proc.stderr.decode()
    recipe.write_text('{"image": "alpine"}')
    proc = cli("template", "build", "x", "--recipe", str(recipe))
    assert proc.returncode == 1 and b"'alpine'" in proc.stderr


def test_doctor(cli: Cli) -> None:
    proc = cli("doctor", "--json")
    data = json.loads(proc.stdout)
    assert data["kvm"] in ("hardware", "emulated", "pvm", "none")
    checks = {check["name"]: check for check in data["checks"]}
    assert {"cpu", "kvm", "kvm-features", "kernel", "bpf", "tun", "cgroup", "guest"} <= set(checks)
    assert data["ok"] == all(check["status"] != "fail" for check in data["checks"])
    assert proc.returncode == (0 if data["ok"] else 1)
    for check in data["checks"]:
        assert check["status"] in ("ok", "warn", "fail") and check["detail"]
    # No guest folder, but a template is there: it runs.
    assert checks["guest"]["status"] == "warn" and checks["state"]["status"] == "ok"
    text = cli("doctor")
    assert text.returncode == proc.returncode and len(text.stdout.splitlines()) > len(checks)


def test_list_of_none_and_of_a_damaged_one(cli: Cli) -> None:
    proc = cli("template", "ls", "--json")
    # The fixture's folder has no manifest: said, and not listed.
    assert (
        proc.returncode == 1 and json.loads(proc.stdout) == [] and b"manifest.json" in proc.stderr
    )
    (cli.state / "templates/debian").rmdir()
    proc = cli("template", "ls", "--json")
    assert proc.returncode == 0 and json.loads(proc.stdout) == []
    proc = cli("template", "ls")
    assert proc.returncode == 0 and proc.stdout == b""
