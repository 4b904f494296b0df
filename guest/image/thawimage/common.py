# SPDX-License-Identifier: Apache-2.0
"""Where things are, progress lines, commands, and the cache, which never holds half a build."""

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

IMAGE_DIR = Path(__file__).resolve().parent.parent
CHECKOUT = IMAGE_DIR.parent.parent
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class BuildError(Exception):
    """The guest can't be built. The message is for the user."""


def cache_dir() -> Path:
    """Thaw's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base).absolute() / "thaw"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest_of(files: list[Path], *texts: str) -> str:
    """Names a cached folder: a digest of all that decides what is in it."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"text {len(text.encode())}\n{text}".encode())
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CHECKOUT)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def read_list(path: Path) -> list[str]:
    """The words of a file, one a line; `#` starts a comment."""
    lines = path.read_text().splitlines()
    return [word for line in lines if (word := line.partition("#")[0].strip())]


def note(text: str) -> None:
    print(f"guest image: {text}", file=sys.stderr, flush=True)


def step(name: str, action: Callable[[], None]) -> None:
    """Runs ACTION as a step: a line when it begins, a line with the seconds when it is done."""
    start_s = time.monotonic()
    note(f"{name} ...")
    action()
    note(f"{name}: {time.monotonic() - start_s:.1f} s")


def run(command: list[str], log: Path, env: dict[str, str] | None = None) -> None:
    """Runs COMMAND with its output at the end of LOG; on failure its last lines are the error."""
    with log.open("ab") as out:
        # The build lock goes along: if this process is killed, the next build waits for COMMAND.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            close_fds=False,
        )
        try:
            process.wait()
        except BaseException:
            # mmdebstrap unmounts and removes what it made when it is asked to end.
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildError(f"{command[0]} failed with status {process.returncode}:\n{last}")


def chroot(tree: Path, *command: str) -> list[str]:
    return ["chroot", str(tree), *command]


def tree_tool(tree: Path, program: str) -> list[str]:
    """Starts PROGRAM of TREE on files of this machine: by the tree's own loader and libraries."""
    loader = tree / "usr/lib64/ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(tree / LIBRARIES), str(tree / program)]


def remove_tree(path: Path) -> None:
    """Removes a tree; never crosses into a file system that a killed build left mounted there."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], check=True)


def sync_filesystem(path: Path) -> None:
    subprocess.run(["sync", "--file-system", str(path)], check=True)


@contextmanager
def build_lock() -> Iterator[None]:
    """One build at a time; others wait and then find it done."""
    with (cache_dir() / "guest-build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("waiting for another build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        # With the lock held, any temporary folder is what an interrupted build left.
        for stale in cache_dir().glob("guest-*.tmp"):
            remove_tree(stale)
        yield


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder NAME of the cache, made by FILL if it is not there.

    A folder of that name is always whole. The caller holds the build lock.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    work = target.with_name(target.name + ".tmp")
    try:
        work.mkdir(mode=0o755)
        fill(work)
        sync_filesystem(work)
        work.rename(target)
        sync_filesystem(target.parent)
    except BaseException:
        remove_tree(work)
        raise
    return target
