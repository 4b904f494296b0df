# SPDX-License-Identifier: Apache-2.0
"""Where the test host keeps things, what identifies it, and the settings of the environment."""

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

HOST_FAILED = 120
"""Exit status of `run` when the host, not the command, failed. No command's own status means it."""

HERE = Path(__file__).resolve().parent.parent
CHECKOUT = HERE.parent.parent
IMAGE_FILES = ("packages.txt", "thawhost/image.py")
AGENT_FILES = (
    "agent.py",
    "thawhost/__init__.py",
    "thawhost/kvmkeys.py",
    "thawhost/pulse.py",
    "thawhost/session.py",
    "thawhost/wire.py",
)
MACHINE_FILES = (
    *AGENT_FILES,
    "thawhost/emulator.py",
    "thawhost/initramfs.py",
    "thawhost/machine.py",
)
INITS = ("agent", "systemd")
STATE_DISK_BYTES = 20 << 30


class HostError(Exception):
    """The test host can't be built, started or reached. The message is for the user."""


def setting(name: str, default: str) -> str:
    """An environment variable; empty counts as not set."""
    return os.environ.get(name) or default


def cache_base() -> Path:
    """The XDG cache folder."""
    return Path(setting("XDG_CACHE_HOME", str(Path.home() / ".cache"))).absolute()


def cache_dir() -> Path:
    """Thaw's cache folder: images, shared with the test host at the same path."""
    path = cache_base() / "thaw"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest_files(names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        content = (HERE / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def image_digest() -> str:
    """Names the image: a digest of all that decides what is in it."""
    return digest_files(IMAGE_FILES)


def host_digest() -> str:
    """Names the running host: the image, and what is laid on it at every start."""
    return digest_files(IMAGE_FILES + MACHINE_FILES)


def image_dir() -> Path:
    return cache_dir() / f"testhost-{image_digest()}"


def init() -> str:
    """What is process 1 of the host: "agent", or "systemd" with the agent as a service."""
    name = setting("THAW_TEST_HOST_INIT", "agent")
    if name not in INITS:
        raise HostError(f"THAW_TEST_HOST_INIT={name}: {' or '.join(INITS)} is expected")
    return name


def checkout_key() -> str:
    """Names this checkout's host; one of each kind can run."""
    suffix = "" if init() == "agent" else f"-{init()}"
    return hashlib.sha256(os.fsencode(CHECKOUT)).hexdigest()[:16] + suffix


def state_disk() -> Path:
    return cache_dir() / "testhost-state" / f"{checkout_key()}.ext4"


def runtime_base() -> Path:
    return Path(setting("XDG_RUNTIME_DIR", "/run")).absolute()


def runtime_dir() -> Path:
    """The running host's files: state.json, token, sockets, logs. Made by machine.start."""
    return runtime_base() / f"thaw-testhost-{checkout_key()}"


def check_private(path: Path) -> None:
    """Refuses a runtime folder that somebody else made or can enter: the token is in it."""
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise HostError(f"{path}: not a folder of mode 0700 that belongs to uid {os.geteuid()}")


def hang_s() -> float:
    """How long the host may be silent before it counts as hung; the agent says PING every 5 s."""
    text = setting("THAW_TEST_HOST_HANG_S", "60")
    if not text.isdigit() or int(text) < 6:
        raise HostError(f"THAW_TEST_HOST_HANG_S={text}: not a number of seconds from 6 up")
    return float(text)


def memory_mb() -> int:
    """The host's memory in MiB: THAW_TEST_HOST_MEM_MB, else 8 GiB or 60 % of this machine's."""
    text = os.environ.get("THAW_TEST_HOST_MEM_MB")
    if text:
        if not text.isdigit() or not 1024 <= int(text) <= 1 << 20:
            raise HostError(f"THAW_TEST_HOST_MEM_MB={text}: not a number of MiB from 1024 up")
        return int(text)
    total_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return max(1024, min(8192, total_mb * 6 // 10))


class Progress:
    """Progress lines on stderr: one a step, with the seconds it took."""

    def __init__(self) -> None:
        self._step = ""
        self._start_s = 0.0
        self._terminal = os.isatty(2)

    def begin(self, step: str) -> None:
        self._step = step
        self._start_s = time.monotonic()
        self._print(f"test host: {step} ...", end="" if self._terminal else "\n")

    def update(self, detail: str) -> None:
        """On a terminal, rewrites the step's line; a log gets nothing."""
        if self._terminal:
            elapsed_s = time.monotonic() - self._start_s
            text = f"test host: {self._step} ... {elapsed_s:.0f} s {detail}"
            self._print(f"\r\x1b[K{text[:100]}", end="")

    def done(self) -> None:
        elapsed_s = time.monotonic() - self._start_s
        start = "\r\x1b[K" if self._terminal else ""
        self._print(f"{start}test host: {self._step}: {elapsed_s:.1f} s", end="\n")

    @staticmethod
    def _print(text: str, end: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{text}{end}".encode(errors="replace"))


def note(text: str) -> None:
    """One line for the user."""
    complain(f"test host: {text}")


def complain(text: str) -> None:
    """TEXT on stderr; a reader that is gone changes nothing."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))
