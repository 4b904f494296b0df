# SPDX-License-Identifier: Apache-2.0
"""A cold start's reads: how many bytes, and how fast beside fio.

`ws` reads the pages of the hot set that are not in the page cache, into it, by io_uring, up to 256
KiB at a time and 128 in flight. build/release/bench-fetch does exactly that and nothing else. fio
gets the same requests on the same files, as a log to replay: same order, sizes, depth, buffered, no
read-ahead. So the two differ in the program alone. With "sequential" fio also reads the longest
stretch of the memory file's data in 256 KiB, which tells what scattered pages cost.
"""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

from lab.arms import Context, NotRun, Template
from lab.measure import Failed, run_good
from lab.sandbox import thaw_run

PAGE = 4096
DEPTH = 128  # WARM_FETCH_DEPTH of vmm/snapshot/warm.h
REQUEST_PAGES = 64  # FETCH_MAX_PAGES of vmm/snapshot/warm_fetch.c
HOT_HEADER_BYTES = 128  # snapshots/FORMAT.md
ROOT_GPA = 4 << 30  # of machines with at most 3 GiB

Request = tuple[Path, int, int]


def hot_runs(path: Path) -> list[tuple[int, int]]:
    """(guest physical address, pages) of a file `hot`."""
    data = path.read_bytes()
    magic, version, nruns = struct.unpack_from("<8sII", data)
    if magic != b"THAWHOT\0" or version != 2:
        raise Failed(f"{path}: not a hot set of version 2")
    return [struct.unpack_from("<QI", data, HOT_HEADER_BYTES + 16 * i) for i in range(nruns)]


def data_extents(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """Where [start, end) of a file holds data."""
    found = []
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:  # a hole up to the file's end
            break
        if start >= end:
            break
        stop = min(end, os.lseek(fd, start, os.SEEK_HOLE))
        found.append((start, stop))
        start = stop
    return found


def requests(template: Template) -> list[Request]:
    """What `ws` reads when nothing is cached: (file, offset, bytes)."""
    if template.memory_mib > 3072:
        raise NotRun("the lab knows the memory map of machines up to 3 GiB")
    root = Path(str(template.manifest["root_image"]))
    found: list[Request] = []
    stretches: list[tuple[Path, int, int]] = []
    for gpa, npages in hot_runs(template.folder / "hot"):
        in_root = gpa >= ROOT_GPA
        path = root if in_root else template.folder / "memory"
        offset = gpa - ROOT_GPA if in_root else gpa
        if stretches and stretches[-1][0] == path and stretches[-1][2] == offset:
            stretches[-1] = (path, stretches[-1][1], offset + npages * PAGE)
        else:
            stretches.append((path, offset, offset + npages * PAGE))
    fds = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path, _, _ in stretches}
    try:
        for path, start, end in stretches:
            end = min(end, os.fstat(fds[path]).st_size)
            for first, last in data_extents(fds[path], start, end):
                for pos in range(first, last, REQUEST_PAGES * PAGE):
                    found.append((path, pos, min(REQUEST_PAGES * PAGE, last - pos)))
    finally:
        for fd in fds.values():
            os.close(fd)
    return found


def write_log(path: Path, wanted: list[Request]) -> None:
    """As fio reads it (--read_iolog, version 2)."""
    files = list(dict.fromkeys(file for file, _, _ in wanted))
    lines = ["fio version 2 iolog"]
    lines += [f"{file} {what}" for what in ("add", "open") for file in files]
    lines += [f"{file} read {offset} {size}" for file, offset, size in wanted]
    lines += [f"{file} close" for file in files]
    path.write_text("\n".join(lines) + "\n")


def fio(options: list[str]) -> tuple[int, float]:
    """Bytes read, and bytes a second, of one fio job on a cold page cache."""
    argv = ["fio", "--name=lab", "--output-format=json", "--readonly", "--invalidate=0"]
    argv += ["--rw=read", "--ioengine=io_uring", "--direct=0", f"--iodepth={DEPTH}", *options]
    text = run_good(argv).output
    read = json.loads(text[text.index("{") :])["jobs"][0]["read"]
    if not read["io_bytes"]:
        raise Failed("fio read nothing")
    return int(read["io_bytes"]), float(read["bw_bytes"])


def _once(
    ctx: Context, template: Template, wanted: list[Request], what: str, into: dict[str, list[float]]
) -> None:
    """One sample of one kind, on a cold page cache."""
    ctx.drop_caches()
    if what == "bytes_read":
        sample, _ = thaw_run(ctx, template, ["--strategy", "ws"], template.command, "none")
        into[what].append(sample["bytes_read"])
    elif what == "ws_fetch_bytes_per_s":
        program = str(ctx.top / "build/release/bench-fetch")
        told = json.loads(run_good([program, str(template.folder)]).output)
        into["fetched_bytes"].append(float(told["bytes"]))
        into[what].append(told["bytes"] / (told["ns"] / 1e9))
    elif what == "fio_bytes_per_s":
        log = ctx.work / "fio.log"
        write_log(log, wanted)
        ctx.drop_caches()
        # Without the last option fio does not count what is in flight when the log ends.
        replay = [f"--read_iolog={log}", "--fadvise_hint=random"]
        size, rate = fio([*replay, "--iodepth_batch_complete_min=0"])
        if size != sum(one[2] for one in wanted):
            raise Failed(f"fio read {size} bytes of {sum(one[2] for one in wanted)}")
        into[what].append(rate)
    else:
        memory = template.folder / "memory"
        start, end = data_extents_of(memory)
        place = [f"--filename={memory}", f"--offset={start}", f"--size={end - start}"]
        into[what].append(fio([*place, "--bs=256k"])[1])


def data_extents_of(path: Path) -> tuple[int, int]:
    """The longest stretch of data."""
    with path.open("rb") as file:
        extents = data_extents(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    if not extents:
        raise Failed(f"{path}: holds no data")
    return max(extents, key=lambda one: one[1] - one[0])


def run(ctx: Context, numbers: dict[str, object]) -> dict[str, object]:
    """{"hot_set_bytes", "bytes_read", "ws_fetch_bytes_per_s", "fio_bytes_per_s", "depth"}."""
    template = ctx.templates[0]
    wanted = requests(template)
    kinds = ["bytes_read", "ws_fetch_bytes_per_s", "fio_bytes_per_s"]
    if numbers.get("sequential"):
        kinds.append("fio_sequential_bytes_per_s")
    into: dict[str, list[float]] = {kind: [] for kind in [*kinds, "fetched_bytes"]}
    errors: list[str] = []
    rng = random.Random(ctx.seed)
    for _ in range(int(str(numbers["n"]))):
        rng.shuffle(kinds)
        for kind in kinds:
            try:
                _once(ctx, template, wanted, kind, into)
            except NotRun:
                raise
            except Exception as error:  # a sample, not the run
                ctx.log(f"io: {kind}: {error}")
                errors.append(f"{kind}: {error}")
    return {
        "hot_set_bytes": sum(size for _, _, size in wanted),
        "requests": len(wanted),
        **into,
        "depth": DEPTH,
        "direct": False,
        "failed": len(errors),
        "errors": errors[:5],
    }
