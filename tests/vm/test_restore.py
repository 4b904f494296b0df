# SPDX-License-Identifier: Apache-2.0
"""What a restored clone is: identity, the right clock, a working vsock, a source of snapshots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import shim
from conftest import STATE, TOP, Sandbox, Thaw, build_template
from soak import checkpoint

IDENTITY = """
cat /sys/class/misc/thaw/generation /sys/class/misc/thaw/vmfork_count /run/machine-id
od -An -tx1 -N16 /dev/urandom | tr -d ' '
date +%s.%N
cut -d' ' -f1 /proc/uptime
uname -n
"""


def identity(box: Sandbox) -> dict[str, str]:
    result = box.exec("sh", "-c", IDENTITY)
    keys = ("generation", "vmfork_count", "machine_id", "random", "date", "uptime", "hostname")
    values = result.stdout.decode().split("\n")
    assert result.value == 0 and len(values) >= len(keys), result
    return dict(zip(keys, values, strict=False))


@pytest.mark.parametrize("strategy", ["copy", "memfd", "mmap", "uring", "ws"])
def test_json_result(thaw: Thaw, tmp_path: Path, strategy: str) -> None:
    report = tmp_path / "r.json"
    proc = thaw.run("--strategy", strategy, "--json", str(report), "--", "sh", "-c", "exit 3")
    assert proc.returncode == 3, proc.stderr
    data = json.loads(report.read_text())
    assert set(data) == {
        *("template", "strategy", "pool", "kvm", "clocks_ms", "faults", "bytes_read", "exit"),
    }
    assert data["template"] == thaw.template and data["strategy"] == strategy
    assert data["pool"] == "none" and data["kvm"] in ("hardware", "emulated")
    assert data["exit"] == {"code": 3, "signal": None}
    clocks = data["clocks_ms"]
    assert set(clocks) == {"c1", "c2", "c3", "c4", "c5"}
    assert 0 < clocks["c1"] < clocks["c2"] < clocks["c3"] < clocks["c4"] < clocks["c5"]
    assert data["faults"]["minor"] > 0 and data["faults"]["major"] >= 0
    assert data["bytes_read"] >= 0


def test_monotonic_clock_continues(sandbox_of: Callable[..., Sandbox]) -> None:
    """Uptime goes on from the snapshot: what passes between snapshot and restore does not exist."""
    first, host_first = float(identity(sandbox_of())["uptime"]), time.monotonic()
    time.sleep(6)
    box = sandbox_of()
    second, host_second = float(identity(box)["uptime"]), time.monotonic()
    # Both answer some time after the same instant; a clock driven by the host shows the pause.
    assert second - first < (host_second - host_first) / 2
    time.sleep(2)
    third, host_third = float(identity(box)["uptime"]), time.monotonic()
    assert abs((third - second) - (host_third - host_second)) < 1.5


def test_clones_do_not_see_each_other(sandbox_of: Callable[..., Sandbox], template: Path) -> None:
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in template.iterdir()}
    one, two = sandbox_of(), sandbox_of()
    write = "head -c 3000000 /dev/urandom >/root/f; echo secret >/tmp/f; sync; sha256sum /root/f"
    first = one.exec("sh", "-c", write)
    assert first.value == 0
    assert two.exec("sh", "-c", "test -e /root/f -o -e /tmp/f").value == 1
    second = two.exec("sh", "-c", write)
    assert second.value == 0 and second.stdout != first.stdout
    again = one.exec("sh", "-c", "echo 3 >/proc/sys/vm/drop_caches; sha256sum /root/f")
    assert again.stdout == first.stdout
    assert {p.name: (p.stat().st_mtime_ns, p.stat().st_size) for p in template.iterdir()} == before


def test_plain_io_path(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that forbids io_uring: the same results by pread and pwrite."""
    monkeypatch.setenv("THAW_IO", "plain")
    box = Sandbox(template, tmp_path, "--strategy", "copy")
    script = "head -c 5000000 /dev/urandom >/root/f; sync; sha256sum /root/f;"
    script += "echo 3 >/proc/sys/vm/drop_caches; sha256sum /root/f"
    lines = box.exec("sh", "-c", script).stdout.split(b"\n")
    assert lines[0] and lines[0] == lines[1]
    assert box.stop() == 0


def test_connection_open_at_the_snapshot_is_reset(
    sandbox_of: Callable[..., Sandbox], template: Path
) -> None:
    """A stream that was open at the snapshot is reset in the clone; new streams work at once."""
    target = STATE / "templates" / "t-open-stream"
    box = sandbox_of("--snapshot", str(target), "--name", target.name, "--replace")
    script = (
        "import socket,os\n"
        "l=socket.socket(socket.AF_VSOCK,socket.SOCK_STREAM)\n"
        "l.bind((socket.VMADDR_CID_ANY,4000)); l.listen()\n"
        "if os.fork(): raise SystemExit\n"
        "os.setsid()\n"
        "open('/sys/fs/cgroup/cgroup.procs','w').write(str(os.getpid()))\n"
        "n=os.open('/dev/null',os.O_RDWR); [os.dup2(n,i) for i in (0,1,2)]\n"
        "c,_=l.accept(); c.sendall(b'hello')\n"
        "try: d=c.recv(10); r='eof' if not d else repr(d)\n"
        "except OSError as e: r=e.strerror\n"
        "open('/tmp/result','w').write(r)\n"
        "while 1:\n c,_=l.accept(); c.sendall(b'again'); c.close()\n"
    )
    assert box.exec("python3", "-c", script).value == 0
    stream = shim.connect(box.vsock, 4000)
    assert shim.read_exact(stream, 5) == b"hello"
    assert checkpoint(box) == 0, box.log()
    stream.close()
    clone = sandbox_of(template=target)
    assert clone.exec("true").value == 0
    with shim.connect(clone.vsock, 4000) as again:
        assert shim.read_exact(again, 5) == b"again"
    assert bytes(clone.exec("cat", "/tmp/result").stdout) in (b"Connection reset by peer", b"eof")


WATCHER = """
import os, time
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        open("/sys/fs/cgroup/cgroup.procs", "w").write(str(os.getpid()))
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        gen_fd = os.open("/sys/class/misc/thaw/generation", os.O_RDONLY)
        old_gen, old_time, rounds = os.pread(gen_fd, 32, 0), time.time(), []
        while len(rounds) < 2:
            now = time.time()
            gen = os.pread(gen_fd, 32, 0)
            if rounds or gen != old_gen or abs(now - old_time) > 3:
                rounds.append("%d %d" % (gen != old_gen, abs(now - old_time) > 3))
            old_gen, old_time = gen, now
        open("/tmp/watch-%d" % n, "w").write(" ".join(rounds))
        os._exit(0)
"""


def test_no_user_code_before_the_fixups(sandbox_of: Callable[..., Sandbox]) -> None:
    """Processes that read the clock, then the generation, without a pause, on two vCPUs.

    Whenever the checkpoint falls, the first round that differs shows the new generation: with the
    new clock, or, when it fell between the two reads, with the new clock in the round after. A new
    clock beside the old generation, or an old clock in the round after, would be user code that ran
    before the kernel was done.
    """
    recipe = str(TOP / "snapshots/recipes/debian")
    build_template("t-smp2", "--vcpus", "2", "--recipe", recipe)
    parent = STATE / "templates" / "t-smp2"
    target = STATE / "templates" / "t-watch"
    box = sandbox_of("--snapshot", str(target), "--name", target.name, "--replace", template=parent)
    assert box.exec("python3", "-c", WATCHER).value == 0
    assert checkpoint(box) == 0, box.log()
    time.sleep(4)  # so that the old clock and the new one can't be mixed up
    for _ in range(5):
        clone = sandbox_of(template=target)
        result = clone.exec(
            "sh", "-c", "until [ -s /tmp/watch-2 ]; do sleep .1; done; sleep .5; cat /tmp/watch-*"
        )
        clone.stop()
        text = result.stdout.decode()
        for number in range(3):
            assert text[number * 7 : number * 7 + 7] in ("1 1 0 0", "1 0 0 1"), text
