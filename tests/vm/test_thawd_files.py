# SPDX-License-Identifier: Apache-2.0
"""Files through thawd in a real guest: what the native matrix (tests/native/test_thawd_files.py)
can't show, which is thaw-files of the initramfs, the guest's overlay, and back-pressure over
vsock."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BIN, STATE, TOP, Thaw

sys.path.insert(0, str(TOP / "tests/native"))

from api_client import Answer, ApiClient

MIB = 1 << 20
WAIT_S = 120
FILES = "/v1/sandboxes/files-test/files"


@pytest.fixture(scope="module")
def api(thaw: Thaw) -> Iterator[ApiClient]:
    """A thawd of its own and a sandbox `files-test`."""
    with tempfile.TemporaryDirectory(prefix="thawd.", dir="/tmp") as name:
        folder = Path(name)
        config = folder / "thaw.conf"
        config.write_text(
            f"socket = {folder}/sock\nstate_folder = {STATE}\njail = off\n"
            f"default_template = {thaw.template}\n"
        )
        with (folder / "log").open("w+b") as log:
            proc = subprocess.Popen(
                [TOP / "build/release/thawd", "--config", config],
                env={**os.environ, "THAW_VMM": str(BIN / "thaw-vmm")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            client = ApiClient(str(folder / "sock"))
            deadline = time.monotonic() + WAIT_S
            while not (folder / "sock").exists():
                assert proc.poll() is None and time.monotonic() < deadline, (
                    folder / "log"
                ).read_text()
                time.sleep(0.05)
            made = client.call("PUT", "/v1/sandboxes/files-test", {}, timeout_s=WAIT_S)
            assert made.status in (200, 201), (made.body, (folder / "log").read_text())
            yield client
            client.call("DELETE", "/v1/sandboxes/files-test", timeout_s=WAIT_S)
            proc.terminate()
            proc.wait(WAIT_S)


def exec_in(api: ApiClient, *argv: str) -> dict[str, object]:
    answer = api.call(
        "POST", "/v1/sandboxes/files-test/exec", {"argv": list(argv)}, timeout_s=WAIT_S
    )
    assert answer.status == 200, answer.body
    return answer.json


def put(api: ApiClient, path: str, body: bytes, what: str = "") -> Answer:
    return api.call("PUT", f"{FILES}{what}?path={path}", body=body, timeout_s=WAIT_S)


def get(api: ApiClient, path: str, what: str = "") -> Answer:
    return api.call("GET", f"{FILES}{what}?path={path}", timeout_s=WAIT_S)


def test_round_trip(api: ApiClient) -> None:
    data = os.urandom(8 * MIB + 123)
    assert put(api, "/root/f", data).json == {"size_bytes": len(data)}
    told = exec_in(api, "sha256sum", "/root/f")
    assert str(told["stdout"]).split()[0] == hashlib.sha256(data).hexdigest()
    assert get(api, "/root/f").body == data
    part = api.call("GET", f"{FILES}?path=/root/f", headers={"Range": "bytes=-10"})
    assert (part.status, part.body) == (206, data[-10:])


def test_errors_of_the_guest_s_kernel(api: ApiClient) -> None:
    assert get(api, "/none").json["error"]["details"]["errno"] == "ENOENT"
    assert get(api, "/etc").json["error"]["details"]["errno"] == "EISDIR"
    assert put(api, "/proc/version", b"x").status in (403, 500)
    denied = api.call("PUT", f"{FILES}?path=/etc/x&user=1000:1000", body=b"x")
    assert (denied.status, denied.code) == (403, "file_error")
    exec_in(api, "mkdir", "/mnt/small")
    # The guest has no mount(8).
    mount = "ctypes.CDLL(None).mount(b'none', b'/mnt/small', b'tmpfs', 0, b'size=1m')"
    assert exec_in(api, "python3", "-c", f"import ctypes; exit({mount})")["exit_code"] == 0
    full = put(api, "/mnt/small/f", bytes(3 * MIB))
    assert (full.status, full.json["error"]["details"]["errno"]) == (507, "ENOSPC")


def test_tree(api: ApiClient) -> None:
    assert (
        api.call("POST", f"{FILES}/mkdir", {"path": "/root/a/b", "recursive": True}).status == 204
    )
    assert put(api, "/root/a/b/f", b"x").status == 200
    entries = get(api, "/root/a&depth=2", "/list").json["entries"]
    assert {entry["path"] for entry in entries} == {"b", "b/f"}
    archive = get(api, "/root/a", "/tar").body
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert sorted(tar.getnames()) == [".", "./b", "./b/f"]
    assert api.call("POST", f"{FILES}/mkdir", {"path": "/root/c"}).status == 204
    assert put(api, "/root/c", archive, "/tar").json["entries"] == 2
    assert get(api, "/root/c/b/f").body == b"x"
    removed = api.call("POST", f"{FILES}/remove", {"path": "/root/a", "recursive": True})
    assert removed.status == 204


def test_watch(api: ApiClient) -> None:
    with api.stream("GET", f"{FILES}/watch?path=/root&recursive=1", timeout_s=WAIT_S) as stream:
        events = stream.events()
        assert next(events).name == "ready"
        exec_in(api, "sh", "-c", "mkdir /root/w && touch /root/w/f && mv /root/w/f /root/g")
        seen = []
        for event in events:
            seen.append(event.name)
            if event.name == "move":
                assert event.data == {"path": "g", "from": "w/f", "directory": False}
                break
        assert "create" in seen


def test_a_client_that_leaves_ends_the_program(api: ApiClient) -> None:
    exec_in(api, "ln", "-s", "/dev/zero", "/root/endless")
    stream = api.stream("GET", f"{FILES}?path=/root/endless", timeout_s=WAIT_S)
    assert stream.read(MIB) == bytes(MIB)
    assert "/root/endless" in str(
        exec_in(api, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    )
    stream.close()
    count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'read /root/endles[s]'"
    deadline = time.monotonic() + WAIT_S
    while str(exec_in(api, "sh", "-c", f"{count} || true")["stdout"]).strip() != "0":
        assert time.monotonic() < deadline
