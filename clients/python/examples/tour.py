#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A tour: make a sandbox, write a large file and read it back, use a terminal, fork, kill.

    python3 tour.py [--template NAME] [--size-mib 1024] [--folder /var/tmp]

thawd is found as by any client: THAW_API_URL and THAW_API_TOKEN, else THAW_SOCKET, else the usual
socket. Ends with "all is well" and status 0, or with the exception that says what is not.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
from collections.abc import Iterator

from thaw import NotFound, Sandbox

PIECE_BYTES = 1 << 20


class Content:
    """So many MiB that are not repeated, made as they are asked for; digest: of what was made."""

    def __init__(self, size_mib: int) -> None:
        self.size_mib = size_mib
        self.hash = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes]:
        piece = bytearray(random.Random(1).randbytes(PIECE_BYTES))
        for number in range(self.size_mib):
            piece[:8] = number.to_bytes(8, "little")
            self.hash.update(piece)
            yield bytes(piece)

    @property
    def digest(self) -> str:
        return self.hash.hexdigest()


def large_file(sandbox: Sandbox, path: str, size_mib: int) -> None:
    """Written and read in pieces: neither program holds more than a few of them."""
    content = Content(size_mib)
    written = sandbox.files.write(path, content)
    print(f"wrote {written} bytes, sha256 {content.digest}")
    back = hashlib.sha256()
    with sandbox.files.read_stream(path) as stream:
        for piece in stream:
            back.update(piece)
    if written != size_mib * PIECE_BYTES or back.hexdigest() != content.digest:
        raise AssertionError(f"read back: sha256 {back.hexdigest()}")
    print("read it back: the same")


def terminal(sandbox: Sandbox) -> None:
    """A shell with a terminal of 120 columns."""
    with sandbox.pty.create(["/bin/sh", "-i"], cols=120, rows=40) as term:
        term.send("stty size; echo ready-$((40 + 2))\n")
        seen = term.read_until("ready-42")
        if b"40 120" not in seen:
            raise AssertionError(f"the terminal's size is not told: {seen!r}")
        term.send("exit 7\n")
        code = term.wait(timeout=60).exit_code
        if code != 7:
            raise AssertionError(f"the shell ended with {code}, not 7")
    print("used a terminal")


def fork(sandbox: Sandbox, path: str) -> None:
    """The copy sees the file as it is now; the original goes on."""
    size = sandbox.files.stat(path).size_bytes
    result = sandbox.fork(2, labels={"role": "copy"})
    for error in result.errors:
        raise error
    for copy in result.sandboxes:
        with copy:
            if copy.files.stat(path).size_bytes != size:
                raise AssertionError(f"{copy.name} has another file")
    print(f"forked twice; the original stood still for {result.pause_ms:.1f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description="A tour of thaw's Python client.")
    parser.add_argument("--template", help="what the sandbox starts from (default: thawd's)")
    parser.add_argument("--size-mib", type=int, default=1024, help="of the file (default 1024)")
    parser.add_argument("--folder", default="/var/tmp", help="for the file, in the sandbox")
    options = parser.parse_args()

    sandbox = Sandbox.create(options.template, labels={"example": "tour"})
    print(f"made {sandbox.name}")
    path = f"{options.folder}/{sandbox.name}.bin"
    try:
        hello = sandbox.commands.run(["sh", "-c", "echo hello from $(uname -s)"], check=True)
        print(hello.stdout.strip())
        large_file(sandbox, path, options.size_mib)
        terminal(sandbox)
        fork(sandbox, path)
        sandbox.files.remove(path)
    finally:
        sandbox.kill()
    try:
        sandbox.refresh()
    except NotFound:
        print("killed it")
    else:
        raise AssertionError("it is still there")
    sandbox.close()
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
