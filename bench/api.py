#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What thawd costs: its calls beside the same work without it, in one run.

    bench/api.py [--n N] [--template NAME] [--storm N] [--file-mib N] [--seed S] [--out FILE] [PART]

A thawd of its own is started (jail on, a pool of waiting machines), measured, and ended. Parts:

  start   POST /v1/sandboxes to the result of the first command, beside `thaw run --local` from a
          populated pool: what the API adds. Both from a pool, in an order drawn from the seed. The
          API's client is this process with a connection that is open; `thaw` is a process, as a
          user starts it, so a third row has a `thaw run` that uses thawd.
  exec    a command in a warm sandbox: over the API, and by the shim's own protocol (the floor)
  files   PUT and GET of a file, beside `cat` of it inside the guest
  pty     a byte to a terminal and its echo by a program there
  memory  private memory of thawd with 1 and with 1 + N idle sandboxes
  storm   N creations at once, each with a first command

Targets: start at most 1.1 times `thaw run`; memory at most 64 KiB a sandbox. Runs where guests can.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/vm"))
import shim  # noqa: E402
from localbin import local_bin  # noqa: E402

BIN = local_bin()
STATE = Path(os.environ.get("THAW_STATE", "/var/lib/thaw"))
PARTS = ("start", "exec", "files", "pty", "memory", "storm")
POOL = 4
TRUE = {"argv": ["/bin/true"]}


class Connection(http.client.HTTPConnection):
    """Kept open over calls."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=600)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def call(self, method: str, target: str, value: object = None, body: Any = None) -> Any:  # noqa: ANN401
        headers = {}
        if value is not None:
            body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
        self.request(method, target, body, headers)
        answer = self.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer.status} {data[:300]!r}")
        is_json = answer.getheader("Content-Type", "").startswith("application/json")
        return json.loads(data) if is_json and data else data


class Daemon:
    """A thawd for this run."""

    def __init__(self, template: str, folder: Path, *, pool: int) -> None:
        self.socket = str(folder / "thaw.sock")
        self.template = template
        conf = folder / "thaw.conf"
        pools = f"pools = {template}={pool}\n" if pool else ""
        conf.write_text(
            f"socket = {self.socket}\nmax_sandboxes = 1000\n"
            f"cpu_overcommit = 100000\nmemory_overcommit = 1000\n{pools}"
        )
        self.log = (folder / "log").open("w+b")
        self.process = subprocess.Popen(
            [str(BIN / "thawd"), "--config", str(conf)], stdout=self.log, stderr=self.log
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                self.connect().call("GET", "/healthz")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(Path(self.log.name).read_text()) from None
                time.sleep(0.05)

    def connect(self) -> Connection:
        return Connection(self.socket)

    def wait_pool(self) -> None:
        """Until its waiting machines are all there, so that no claim meets an empty pool."""
        connection = self.connect()
        while any(
            pool["ready"] < pool["size"] for pool in connection.call("GET", "/v1/pools")["pools"]
        ):
            time.sleep(0.05)

    def private_kib(self) -> int:
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return sum(
            int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")
        )

    def close(self) -> None:
        connection = self.connect()
        for box in connection.call("GET", "/v1/sandboxes?limit=1000")["sandboxes"]:
            connection.call("DELETE", f"/v1/sandboxes/{box['name']}")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic_ns()
    work()
    return (time.monotonic_ns() - start) / 1e6


def summary(samples: list[float]) -> dict[str, float | int]:
    ordered = sorted(samples)
    return {
        "n": len(ordered),
        "median_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 3),
        "min_ms": round(ordered[0], 3),
    }


def interleaved(arms: dict[str, Callable[[], float]], n: int, rng: random.Random) -> dict[str, Any]:
    """Each arm N times, in a drawn order: what drifts hits all alike."""
    order = [name for name in arms for _ in range(n)]
    rng.shuffle(order)
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values():
        arm()
    for name in order:
        samples[name].append(arms[name]())
    return {name: summary(values) for name, values in samples.items()}


def part_start(daemon: Daemon, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    connection = daemon.connect()
    pool = subprocess.Popen(
        [str(BIN / "thaw"), "pool", args.template, "--populate", "--size", str(POOL)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    env = {**os.environ, "THAW_SOCKET": daemon.socket}

    def settle() -> None:
        daemon.wait_pool()
        while True:
            state = json.loads(run_thaw(["pool", args.template, "--status", "-o", "json"]))
            if state["ready"] >= POOL:
                return
            time.sleep(0.05)

    def api() -> float:
        settle()
        name = ""

        def work() -> None:
            nonlocal name
            box = connection.call("POST", "/v1/sandboxes", {"template": args.template})
            name = box["name"]
            if box["start"]["pool"] != "hit":
                misses.append(name)
            connection.call("POST", f"/v1/sandboxes/{name}/exec", TRUE)

        ms = timed(work)
        connection.call("DELETE", f"/v1/sandboxes/{name}")
        return ms

    def command(*options: str) -> Callable[[], float]:
        argv = [str(BIN / "thaw"), "run", *options, args.template, "--", "/bin/true"]

        def arm() -> float:
            settle()
            return timed(lambda: subprocess.run(argv, check=True, env=env))

        return arm

    def run_thaw(words: list[str]) -> bytes:
        return subprocess.run(
            [str(BIN / "thaw"), *words], check=True, stdout=subprocess.PIPE
        ).stdout

    misses: list[str] = []
    try:
        arms = {"api": api, "thaw-run-local": command("--local"), "thaw-run-api": command()}
        result = interleaved(arms, args.n, rng)
    finally:
        pool.terminate()
        pool.wait()
    local = result["thaw-run-local"]["median_ms"]
    result["api_over_local"] = round(result["api"]["median_ms"] / local, 3)
    result["run_api_over_local"] = round(result["thaw-run-api"]["median_ms"] / local, 3)
    result["pool_misses_api"] = len(misses)
    return result


def box_socket(connection: Connection, name: str) -> Path:
    return STATE / "run" / connection.call("GET", f"/v1/sandboxes/{name}")["id"] / "vsock"


def part_exec(daemon: Daemon, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    connection = daemon.connect()
    connection.call("PUT", "/v1/sandboxes/bench", {"template": args.template})
    vsock = box_socket(connection, "bench")

    arms = {
        "api": lambda: timed(lambda: connection.call("POST", "/v1/sandboxes/bench/exec", TRUE)),
        "shim": lambda: timed(lambda: shim.run(vsock, ["/bin/true"])),
    }
    result = interleaved(arms, args.n, rng)
    result["ratio"] = round(result["api"]["median_ms"] / result["shim"]["median_ms"], 3)
    return result


def part_files(daemon: Daemon, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    connection = daemon.connect()
    connection.call("PUT", "/v1/sandboxes/bench", {"template": args.template})
    data = rng.randbytes(args.file_mib << 20)
    target = "/v1/sandboxes/bench/files?path=/root/data"
    cat = {"argv": ["sh", "-c", "cat /root/data > /dev/null"]}
    copy = {"argv": ["sh", "-c", "cat /root/data > /root/copy"]}

    def get() -> None:
        if len(connection.call("GET", target)) != len(data):
            raise RuntimeError("short file")

    connection.call("PUT", target, body=data)
    arms = {
        "put": lambda: timed(lambda: connection.call("PUT", target, body=data)),
        "get": lambda: timed(get),
        "cat": lambda: timed(lambda: connection.call("POST", "/v1/sandboxes/bench/exec", cat)),
        "copy": lambda: timed(lambda: connection.call("POST", "/v1/sandboxes/bench/exec", copy)),
    }
    result = interleaved(arms, max(3, args.n // 6), rng)
    for row in result.values():
        row["mib_s"] = round(args.file_mib / row["median_ms"] * 1000, 1)
    result["get_over_cat"] = round(result["get"]["median_ms"] / result["cat"]["median_ms"], 3)
    result["put_over_copy"] = round(result["put"]["median_ms"] / result["copy"]["median_ms"], 3)
    return result


def part_pty(daemon: Daemon, args: argparse.Namespace, _rng: random.Random) -> dict[str, Any]:
    connection = daemon.connect()
    connection.call("PUT", "/v1/sandboxes/bench", {"template": args.template})
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(60)
    sock.connect(daemon.socket)
    sock.sendall(
        b"POST /v1/sandboxes/bench/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: thaw-exec/1\r\nContent-Length: 0\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    if b" 101 " not in head:
        raise RuntimeError(head.decode())
    # Without a line discipline that answers by itself it would be the guest kernel's echo alone.
    payload = shim.exec_payload(["sh", "-c", "stty raw -echo; printf R; exec cat"], pty=True)
    sock.sendall(shim.frame(shim.EXEC, payload))
    frames = shim.frames(sock)

    def until_output(n: int) -> None:
        while n > 0:
            kind, data = next(frames)
            n -= len(data) if kind == shim.STDOUT else 0

    def echo() -> None:
        sock.sendall(shim.frame(shim.STDIN, b"x"))
        until_output(1)

    until_output(1)
    samples = [timed(echo) for _ in range(args.n * 3)]
    sock.close()
    return {"echo": summary(samples)}


def part_memory(daemon: Daemon, args: argparse.Namespace, _rng: random.Random) -> dict[str, Any]:
    connection = daemon.connect()
    names = [f"idle-{i}" for i in range(args.storm // 2 + 1)]

    def create(name: str) -> None:
        connection.call("PUT", f"/v1/sandboxes/{name}", {"template": args.template})
        connection.call("POST", f"/v1/sandboxes/{name}/exec", TRUE)

    create(names[0])
    before = daemon.private_kib()
    for name in names[1:]:
        create(name)
    after = daemon.private_kib()
    for name in names:
        connection.call("DELETE", f"/v1/sandboxes/{name}")
    return {
        "sandboxes": len(names) - 1,
        "private_kib_one": before,
        "private_kib_all": after,
        "kib_a_sandbox": round((after - before) / (len(names) - 1), 1),
    }


def part_storm(daemon: Daemon, args: argparse.Namespace, _rng: random.Random) -> dict[str, Any]:
    def one(i: int) -> float:
        connection = daemon.connect()

        def work() -> None:
            connection.call("PUT", f"/v1/sandboxes/storm-{i}", {"template": args.template})
            connection.call("POST", f"/v1/sandboxes/storm-{i}/exec", TRUE)

        return timed(work)

    start = time.monotonic_ns()
    with concurrent.futures.ThreadPoolExecutor(args.storm) as executor:
        futures = [executor.submit(one, i) for i in range(args.storm)]
    whole = (time.monotonic_ns() - start) / 1e9
    good = [future.result() for future in futures if not future.exception()]
    errors = [str(future.exception()) for future in futures if future.exception()]
    connection = daemon.connect()
    for i in range(args.storm):
        connection.call("DELETE", f"/v1/sandboxes/storm-{i}")
    result: dict[str, Any] = {
        "asked": args.storm,
        "failed": len(errors),
        "whole_s": round(whole, 3),
    }
    if good:
        result["first_command"] = summary(good)
    if errors:
        result["first_error"] = errors[0]
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--template", default="debian")
    parser.add_argument("--storm", type=int, default=100)
    parser.add_argument("--file-mib", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=TOP / "build/bench/api.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}: expected {', '.join(PARTS)}")
    rng = random.Random(args.seed)
    report: dict[str, Any] = {"machine": platform.machine(), "kernel": platform.release()}
    for part in args.parts or PARTS:
        # A storm and idle sandboxes are of machines that did not wait.
        pool = POOL if part == "start" else 0
        with tempfile.TemporaryDirectory(prefix="thaw-bench-") as folder:
            daemon = Daemon(args.template, Path(folder), pool=pool)
            try:
                report[part] = globals()[f"part_{part}"](daemon, args, rng)
            finally:
                daemon.close()
        print(part, json.dumps(report[part], indent=1), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
