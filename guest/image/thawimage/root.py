# SPDX-License-Identifier: Apache-2.0
"""The guest's root image: a Debian tree, made small and quick to start, as an erofs file."""

import os
import shutil
import stat
from pathlib import Path

from .common import BuildError, chroot, run, step, tree_tool
from .debian import make_tree

TIMESTAMP_S = 1754697600
"""Every file's time: the day of Debian 13's release. The same inputs give the same image."""

UUID = "74686177-0000-4000-8000-000000000001"
ALIGN_BYTES = 2 << 20
MOUNT_POINTS = {"proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "tmp": 0o1777}
EMPTIED = (
    "boot",
    "var/cache/apt",
    "var/cache/debconf",
    "var/cache/ldconfig",
    "var/lib/apt/lists",
    "var/log",
    *MOUNT_POINTS,
)
FILES = {
    "etc/hostname": "thaw\n",
    "etc/hosts": "127.0.0.1 localhost thaw\n::1 localhost\n",
    "etc/resolv.conf": "# No name server: this sandbox has no network.\n",
    "etc/default/locale": "LANG=C.UTF-8\n",
    "etc/fstab": "# The shim mounts everything.\n",
}
SYMLINKS = {"etc/machine-id": "/run/machine-id", "etc/mtab": "../proc/self/mounts"}


def empty_folder(path: Path, mode: int | None = None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if mode is not None:
        path.chmod(mode)


def write_files(tree: Path) -> None:
    for name in EMPTIED:
        empty_folder(tree / name, MOUNT_POINTS.get(name))
    for pattern in ("etc/*-", "var/lib/dpkg/*-old", "initrd.img*", "vmlinuz*"):
        for path in tree.glob(pattern):
            path.unlink()
    for name, text in FILES.items():
        (tree / name).unlink(missing_ok=True)
        (tree / name).write_text(text)
    for name, target in SYMLINKS.items():
        (tree / name).unlink(missing_ok=True)
        (tree / name).symlink_to(target)
    for path in [tree / "etc/apt/sources.list", *(tree / "etc/apt/sources.list.d").glob("*")]:
        # A mirror with a password in its address is this machine's secret.
        if path.is_file() and "@" in path.read_text(errors="replace"):
            path.unlink()


def set_times(tree: Path) -> None:
    """The image has one time for all files; compiled Python must have seen that time."""
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files, "."]:
            times = (TIMESTAMP_S, TIMESTAMP_S)
            os.utime(Path(folder, name), times, follow_symlinks=False)


def compile_python(tree: Path, log: Path) -> None:
    """Without it every first import in every clone would compile, and write to the scratch disk."""
    for cache in list((tree / "usr/lib").glob("python3*/**/__pycache__")):
        shutil.rmtree(cache)
    set_times(tree)
    folders = sorted(f"/{path.relative_to(tree)}" for path in (tree / "usr/lib").glob("python3*"))
    if not folders:
        raise BuildError("the root has no Python to compile")
    run(chroot(tree, "python3", "-I", "-m", "compileall", "-q", *folders), log)


def check_tree(tree: Path) -> None:
    for name, mode in MOUNT_POINTS.items():
        info = (tree / name).lstat()
        if not stat.S_ISDIR(info.st_mode) or stat.S_IMODE(info.st_mode) != mode:
            raise BuildError(f"/{name} of the root is not a folder of mode {mode:o}")
    for name in ("usr/bin/python3", "usr/bin/sh", "usr/bin/ps", "usr/bin/ip"):
        if not (tree / name).exists():
            raise BuildError(f"the root has no /{name}")


def make_erofs(tree: Path, image: Path, kit: Path, log: Path) -> None:
    """Uncompressed, and no file's tail beside its inode: only such data can be mapped by DAX."""
    command = [*tree_tool(kit, "usr/bin/mkfs.erofs"), "--quiet", "-b4096", f"-T{TIMESTAMP_S}"]
    command += [f"-U{UUID}", "-Enoinline_data,force-inode-compact", str(image), str(tree)]
    run(command, log)
    size_bytes = image.stat().st_size
    # A persistent memory region is made of whole huge pages.
    os.truncate(image, -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES)


def make_root(work: Path, packages: list[str], kit: Path) -> None:
    """WORK/root.erofs, with @packages in it."""
    tree = work / "tree"
    log = work / "build.log"
    step("installing the guest's Debian 13 packages", lambda: make_tree(tree, packages, log))
    write_files(tree)
    step("compiling Python", lambda: compile_python(tree, log))
    # What the compiler may have left behind in the mount points goes, too.
    for name, mode in MOUNT_POINTS.items():
        empty_folder(tree / name, mode)
    check_tree(tree)
    step("making root.erofs", lambda: make_erofs(tree, work / "root.erofs", kit, log))
    shutil.rmtree(tree)
