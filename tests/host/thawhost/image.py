# SPDX-License-Identifier: Apache-2.0
"""Builds the test host's image: a Debian 13 tree with its own kernel and emulator, and its disk.

The folder testhost-DIGEST in the cache holds
  tree/      the root tree; QEMU, virtiofsd and the ext4 tools run out of it on the outer machine,
             through the tree's own dynamic loader, so the machine's packages don't matter
  root.ext4  the same tree as a disk image, never written to after it was made
  kernel     the tree's kernel
It is built beside its place, synced, then renamed: a folder of that name is always whole.
"""

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import config
from .config import HostError, Progress

SUITE = "trixie"
ROOT_DISK_BYTES = 6 << 30
UNUSED_DAYS = 30
MIN_QEMU_MAJOR = 10
LIBRARIES = "usr/lib/x86_64-linux-gnu"
TRIM = ("usr/share/man", "usr/share/doc", "usr/share/locale", "usr/share/info")


def read_packages() -> list[str]:
    lines = (config.HERE / "packages.txt").read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def tool_command(tree: Path, program: str) -> list[str]:
    """How to start PROGRAM (a path in the tree) on the outer machine."""
    loader = tree / "usr/lib64/ld-linux-x86-64.so.2"
    return [str(loader), "--library-path", str(tree / LIBRARIES), str(tree / program)]


def tool_env(tree: Path) -> dict[str, str]:
    """The environment for programs of the tree: a loader hides from them where they are."""
    env = dict(os.environ)
    env["QEMU_MODULE_DIR"] = str(tree / LIBRARIES / "qemu")
    env["MKE2FS_CONFIG"] = str(tree / "etc/mke2fs.conf")
    env.pop("LD_PRELOAD", None)
    env.pop("LD_LIBRARY_PATH", None)
    return env


def find_mirror() -> str | None:
    """The Debian mirror to use: THAW_MIRROR, else this machine's own, else None (the default)."""
    chosen = os.environ.get("THAW_MIRROR")
    if chosen:
        return chosen
    try:
        listing = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    rows = [line.split("|") for line in listing.splitlines() if line.count("|") == 3]
    for origin, label, _, uri in rows:
        if origin == "Debian" and label == "Debian":
            return uri
    # Before the first `apt-get update` there is no Origin to read; on Debian the main archive is
    # the source whose suite is the bare code name.
    release = read_os_release()
    if release.get("ID") != "debian":
        return None
    suites = {release.get("VERSION_CODENAME"), "stable", "oldstable", "testing"}
    return next((uri for origin, _, suite, uri in rows if not origin and suite in suites), None)


def read_os_release() -> dict[str, str]:
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip().strip('"') for key, _, value in pairs}


def proxy_options() -> list[str]:
    """Hands this machine's apt proxy on, if it has one."""
    options = []
    for scheme in ("http", "https"):
        key = f"Acquire::{scheme}::Proxy"
        try:
            dump = subprocess.run(
                ["apt-config", "dump", "--format", "%f=%v%n", key], capture_output=True, text=True
            ).stdout
        except OSError:
            return []
        for line in dump.splitlines():
            name, _, value = line.partition("=")
            if name == key and value:
                options.append(f'--aptopt={key} "{value}"')
    return options


def run_logged(command: list[str], log: Path, progress: Progress, lock_fd: int) -> None:
    """Runs COMMAND with its output in LOG; on failure its last lines are the error.

    If this process is killed, COMMAND gets SIGTERM; until it and its children have ended they hold
    the build's lock, so that no other build starts over their heads.
    """
    with log.open("ab") as out, log.open("rb") as tail:
        tail.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            pass_fds=[lock_fd],
        )
        try:
            while True:
                try:
                    process.wait(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    lines = tail.read().decode(errors="replace").split("\n")
                    progress.update(lines[-2].strip() if len(lines) > 1 else "")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise HostError(f"{command[0]} failed with status {process.returncode}:\n{last}")


def make_tree(tree: Path, log: Path, progress: Progress, lock_fd: int) -> None:
    if not shutil.which("mmdebstrap"):
        raise HostError("mmdebstrap is not installed: run `make deps`")
    command = ["mmdebstrap", "--variant=apt", "--mode=root", "--format=directory"]
    command += ["--architectures=amd64", f"--include={','.join(read_packages())}"]
    command += ['--aptopt=Apt::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    command += proxy_options()
    command += [f"--dpkgopt=path-exclude=/{folder}/*" for folder in TRIM]
    command += [SUITE, str(tree)]
    mirror = find_mirror()
    if mirror:
        command.append(mirror)
    run_logged(command, log, progress, lock_fd)
    for name in ("initrd.img", "initrd.img.old", "vmlinuz", "vmlinuz.old"):
        (tree / name).unlink(missing_ok=True)
    for path in (tree / "boot").glob("initrd.img-*"):
        path.unlink()
    (tree / "etc/hostname").write_text("thaw-testhost\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost thaw-testhost\n::1 localhost\n")
    (tree / "etc/resolv.conf").write_text("")
    (tree / "var/lib/thaw").mkdir(exist_ok=True)


def check_qemu(tree: Path) -> None:
    """QEMU before 10 crashes the test host's kernel under load."""
    text = subprocess.run(
        [*tool_command(tree, "usr/bin/qemu-system-x86_64"), "--version"],
        capture_output=True,
        text=True,
        env=tool_env(tree),
    ).stdout
    match = re.search(r"version (\d+)\.", text)
    if not match or int(match[1]) < MIN_QEMU_MAJOR:
        raise HostError(f"QEMU {MIN_QEMU_MAJOR} or later is needed, the tree has: {text[:80]!r}")


def make_ext4(image: Path, size_bytes: int, tree: Path, source: Path | None) -> None:
    """Makes IMAGE, a sparse ext4 disk, with the files of SOURCE if given."""
    with image.open("xb") as file:
        file.truncate(size_bytes)
    command = [*tool_command(tree, "usr/sbin/mke2fs"), "-q", "-t", "ext4", "-F", "-m", "0"]
    if source:
        # The root disk is thrown away at every stop: a journal would only cost time.
        command += ["-O", "^has_journal", "-d", str(source)]
    result = subprocess.run(
        [*command, str(image)], capture_output=True, text=True, env=tool_env(tree)
    )
    if result.returncode != 0:
        raise HostError(f"mke2fs {image}: status {result.returncode}: {result.stderr.strip()}")


def copy_kernel(tree: Path, target: Path) -> None:
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise HostError(f"{tree}/boot has {len(kernels)} kernels, 1 expected")
    shutil.copyfile(kernels[0], target)


def sync_tree(path: Path) -> None:
    """Everything under PATH is on disk when this returns."""
    subprocess.run(["sync", "--file-system", str(path)], check=True)


def remove_tree(path: Path) -> None:
    """Removes a tree; never crosses into a file system that a killed build left mounted there."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(path)], check=True)


def prune() -> None:
    """Removes the images of other recipes that no host was started from for a month."""
    limit_s = time.time() - UNUSED_DAYS * 86400
    for path in config.cache_dir().glob("testhost-????????????????"):
        if path != config.image_dir() and path.stat().st_mtime < limit_s:
            remove_tree(path)


def build_steps(work: Path, lock_fd: int) -> None:
    tree = work / "tree"
    progress = Progress()

    def step(name: str, action: Callable[[], None]) -> None:
        progress.begin(name)
        action()
        progress.done()

    step(
        "installing Debian 13 packages (about a minute)",
        lambda: make_tree(tree, work / "build.log", progress, lock_fd),
    )
    check_qemu(tree)
    step(
        "making the root disk",
        lambda: make_ext4(work / "root.ext4", ROOT_DISK_BYTES, tree, tree),
    )
    copy_kernel(tree, work / "kernel")
    step("syncing", lambda: sync_tree(work))


def build() -> Path:
    """Returns the image folder, built first if need be. Concurrent builds wait for the first."""
    target = config.image_dir()
    if target.is_dir():
        return target
    if os.geteuid() != 0:
        raise HostError("the image must be built as root (it makes a root tree)")
    with (config.cache_dir() / "testhost-build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            config.note("waiting for another build")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        # With the lock held, any other temporary folder is what an interrupted build left.
        for stale in config.cache_dir().glob("testhost-*.tmp"):
            remove_tree(stale)
        work = target.with_name(target.name + ".tmp")
        try:
            work.mkdir(mode=0o755)
            build_steps(work, lock.fileno())
            work.rename(target)
            sync_tree(target.parent)
            prune()
        except BaseException:
            remove_tree(work)
            raise
    return target
