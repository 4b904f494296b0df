# SPDX-License-Identifier: Apache-2.0
"""What breaks a thawd that trusts its clients, its guests or its operator too much."""

from __future__ import annotations

import subprocess

from daemon import THAWD, Thawd, alive, fresh_thawd, needs_thawd, remove_thawd, thawd

pytestmark = needs_thawd
__all__ = ["thawd"]


def test_one_thawd_for_each_state_folder(thawd: Thawd) -> None:
    box = thawd.create("a")
    other = fresh_thawd()
    try:
        other.config.write_text(f"socket = {other.socket}\njail = off\n")
        second = subprocess.run(
            [THAWD, "--config", other.config],
            env=thawd.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        remove_thawd(other)
    assert second.returncode == 1
    assert "another thawd serves this state folder" in second.stderr
    assert alive(thawd.machine_pid(box["id"])) and thawd.state_of("a") == "running"
    # One that was killed leaves nothing that holds it.
    thawd.kill9()
    thawd.start()
    assert thawd.inspect("a")["id"] == box["id"]
