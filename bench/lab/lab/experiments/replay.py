# SPDX-License-Identifier: Apache-2.0
"""Record on A, replay on B: what a hot set that was recorded for one command does for another.

Two copies of the template: the hot set of one is recorded in a single clone that ran command A
only, that of the other with B only. Then every command runs from every copy, and without any hot
set (mmap), interleaved. A is light, B needs most of what A needs and more.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from lab.arms import Context, Template
from lab.measure import Failed
from lab.sandbox import PATIENCE_S, thaw_run
from lab.templates import Copies

sys.path.append(str(Path(__file__).resolve().parents[4] / "tests/vm"))
import shim

FIRST_PORT = 1025  # of the host: the guest connects there for its first request
COMMANDS = {
    "A": ["/bin/true"],
    "B": ["python3", "-c", "import json, os, sys, subprocess"],
}


def record(ctx: Context, template: Template, argv: list[str]) -> None:
    """Make the hot set of @template, a copy of our own, that of one clone's first command."""
    with tempfile.TemporaryDirectory(prefix="thaw-lab-") as folder:
        vsock = Path(folder) / "vsock"
        hot = template.folder / "hot.new"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            tempfile.TemporaryFile() as request,
            hot.open("wb") as out,
        ):
            listener.bind(f"{vsock}_{FIRST_PORT}")
            listener.listen(1)
            listener.settimeout(PATIENCE_S)
            request.write(shim.exec_payload(argv, env={"PATH": "/usr/bin:/bin", "HOME": "/root"}))
            request.seek(0)
            process = subprocess.Popen(
                [
                    *(ctx.thaw_vmm, "restore", str(template.folder), "--strategy", "mmap"),
                    *("--vsock", str(vsock), "--disk-dir", str(ctx.state)),
                    *("--request-fd", str(request.fileno()), "--hot-fd", str(out.fileno())),
                ],
                pass_fds=[request.fileno(), out.fileno()],
                stdin=subprocess.DEVNULL,
            )
            try:
                stream, _ = listener.accept()
                with stream:
                    stream.settimeout(PATIENCE_S)
                    result = shim.collect(stream)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()
        if result.value != 0 or process.returncode != 0:
            hot.unlink()
            raise Failed(f"recording {argv[0]}: {result.error or result.value}")
        hot.chmod(0o400)
        hot.replace(template.folder / "hot")


def run(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"recorded_on": "A", "rows": [{"command", "set_from": "A|B|none", "c4": [...]}]}."""
    copies = Copies(ctx, ctx.templates[0])
    rows: list[dict[str, object]] = []
    cells = []
    errors: list[str] = []
    try:
        made = {name: copies.make(f"lab-set-{name.lower()}") for name in COMMANDS}
        for name, argv in COMMANDS.items():
            record(ctx, made[name], argv)
        for command, argv in COMMANDS.items():
            for set_from, template in [*made.items(), ("none", made["A"])]:
                c4: list[float] = []
                strategy = "mmap" if set_from == "none" else "ws"
                rows.append({"command": " ".join(argv), "set_from": set_from, "c4": c4})
                rows[-1]["command_id"] = command
                cells.append((template, strategy, argv, c4))
        for template, strategy, argv, _ in cells:
            thaw_run(ctx, template, ["--strategy", strategy], argv, "none")
        rng = random.Random(ctx.seed)
        for _ in range(int(str(numbers["n"]))):
            rng.shuffle(cells)
            for template, strategy, argv, c4 in cells:
                try:
                    sample, _ = thaw_run(ctx, template, ["--strategy", strategy], argv, "none")
                    c4.append(sample["c4"])
                except Exception as error:  # a sample, not the run
                    ctx.log(f"replay: {error}")
                    errors.append(str(error))
    finally:
        copies.remove()
    return {"recorded_on": "A", "rows": rows, "failed": len(errors), "errors": errors[:5]}
