# SPDX-License-Identifier: Apache-2.0
"""The command line where a guest's kernel has a part in it: terminals. The rest is native."""

from __future__ import annotations

from conftest import Thaw


def test_terminal(thaw: Thaw) -> None:
    proc = thaw.sh("tty; stty size; test -t 0 && test -t 1 && test -t 2 && exit 3", "-t")
    assert proc.returncode == 3, proc
    assert proc.stdout.startswith(b"/dev/pts/") and b"\r\n24 80\r\n" in proc.stdout


def test_terminal_takes_input(thaw: Thaw) -> None:
    proc = thaw.run("-it", "--", "sh", "-c", "read x; echo got-$x", stdin=b"abc\n")
    assert proc.returncode == 0 and b"got-abc\r\n" in proc.stdout, proc
