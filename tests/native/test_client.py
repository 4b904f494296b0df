# SPDX-License-Identifier: Apache-2.0
"""The Python client against a real thawd, with stand-ins for machines; every answer that it gets is
held to docs/openapi.yaml."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openapi_check
import pytest
from daemon import TOP, Thawd, fresh_thawd, needs_thawd, remove_thawd

sys.path.insert(0, str(TOP / "clients/python/src"))
import thaw

pytestmark = needs_thawd
EXAMPLES = TOP / "clients/python/examples"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Thawd]:
    made = fresh_thawd("default_template = debian")
    try:
        with openapi_check.watch_client():
            yield made.start()
    finally:
        remove_thawd(made)


@pytest.fixture
def client(daemon: Thawd) -> Iterator[thaw.Client]:
    with thaw.Client(socket=daemon.socket) as made:
        yield made


@pytest.fixture
def sandbox(client: thaw.Client) -> Iterator[thaw.Sandbox]:
    with thaw.Sandbox.create(client=client) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """For files: what is in a sandbox of a stand-in is this machine."""
    return str(tmp_path)


# --- sandboxes ---


def test_server(client: thaw.Client) -> None:
    assert client.version()["api"] == "v1"
    assert client.info()["quotas"]["sandboxes"]["used"] >= 0
    assert "thaw_build_info" in client.metrics()


def test_get_or_create(client: thaw.Client) -> None:
    spec = {"labels": {"a": "b"}, "inactivity_timeout": 600, "client": client}
    first = thaw.Sandbox.get_or_create("goc", **spec)
    assert (first.name, first.info.state, first.info.labels) == ("goc", "running", {"a": "b"})
    assert first.info.inactivity_timeout_ms == 600_000
    assert thaw.Sandbox.get_or_create("goc", **spec).info.id == first.info.id
    with pytest.raises(thaw.Conflict) as caught:
        thaw.Sandbox.get_or_create("goc", inactivity_timeout=60, client=client)
    assert "inactivity_timeout_ms" in [each["field"] for each in caught.value.differences]
    with pytest.raises(thaw.Conflict):
        thaw.Sandbox.create(name="goc", client=client)
    assert thaw.Sandbox.connect("goc", client=client).info.id == first.info.id
    first.kill("done")
    first.kill()
    with pytest.raises(thaw.NotFound, match="goc"):
        thaw.Sandbox.connect("goc", client=client)
    assert client.find("goc") is None


def test_with_kills_what_it_made_and_nothing_else(client: thaw.Client) -> None:
    with thaw.Sandbox.create(client=client) as made:
        name = made.name
        with thaw.Sandbox.connect(name, client=client):
            pass
        assert made.refresh().state == "running"
    assert client.find(name) is None


def test_list(client: thaw.Client) -> None:
    made = [
        thaw.Sandbox.create(name=f"list-{n}", labels={"l": str(n % 2)}, client=client)
        for n in range(4)
    ]
    try:

        def names(**options: object) -> list[str]:
            return [info.name for info in thaw.Sandbox.list(client=client, **options)]

        assert names(labels={"l": "1"}) == ["list-1", "list-3"]
        assert names(labels={"l": None}) == [f"list-{n}" for n in range(4)]
        made[0].stop(grace=1)
        assert names(labels={"l": None}, state="stopped") == ["list-0"]
        assert names(labels={"l": "2"}) == []
    finally:
        for each in made:
            each.kill()


def test_stop_start_wait(sandbox: thaw.Sandbox) -> None:
    with pytest.raises(thaw.Timeout):
        sandbox.wait(timeout=0.05)
    with pytest.raises(thaw.WrongState):
        sandbox.start()
    ended: list[thaw.Stop] = []
    other = thaw.Client(socket=sandbox.client.endpoint.socket)
    waiter = thaw.Sandbox.connect(sandbox.name, client=other)
    thread = threading.Thread(target=lambda: ended.append(waiter.wait(timeout=60)))
    thread.start()
    assert sandbox.stop(grace=1, reason="why not").state == "stopped"
    thread.join()
    other.close()
    assert [(stop.reason, stop.message) for stop in ended] == [("stopped", "why not")]
    with pytest.raises(thaw.WrongState, match="stopped"):
        sandbox.commands.run(["true"])
    with pytest.raises(thaw.WrongState):
        sandbox.files.stat("/")
    assert sandbox.start().state == "running"
    assert sandbox.destroy("enough").stop is not None
    assert sandbox.info.stop is not None
    assert (sandbox.info.stop.reason, sandbox.info.stop.message) == ("destroyed", "enough")


def test_entrypoint(client: thaw.Client) -> None:
    command = ["sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"]
    with thaw.Sandbox.create(entrypoint=command, client=client) as sandbox:
        assert sandbox.info.entrypoint_exec is not None
        handle = sandbox.commands.connect(sandbox.info.entrypoint_exec)
        handle.wait_for_log("up", timeout=60)
        sandbox.signal("SIGTERM")
        stop = sandbox.wait(timeout=60)
        assert (stop.reason, stop.exit_code) == ("exited", 5)


def test_update_touch_stats(sandbox: thaw.Sandbox) -> None:
    info = sandbox.update(labels={"x": "y"}, inactivity_timeout=120, hard_timeout=3600)
    assert (info.labels, info.inactivity_timeout_ms) == ({"x": "y"}, 120_000)
    assert info.hard_timeout_ms == 3_600_000
    assert sandbox.update(hard_timeout=None, keep_alive=True).hard_timeout_ms is None
    sandbox.touch()
    assert sandbox.stats().processes >= 1


def test_pause_resume(sandbox: thaw.Sandbox) -> None:
    assert sandbox.pause().state == "paused"
    with pytest.raises(thaw.WrongState):
        sandbox.commands.run(["true"])
    assert sandbox.resume().state == "running"
    assert sandbox.commands.run(["true"]).ok


def test_fork(sandbox: thaw.Sandbox) -> None:
    result = sandbox.fork(2, names=["fork-a", "fork-b"], labels={"f": "1"})
    try:
        assert result.errors == []
        assert [each.name for each in result.sandboxes] == ["fork-a", "fork-b"]
        for each in result.sandboxes:
            assert each.info.parent == sandbox.name
            assert each.commands.run(["true"]).ok
    finally:
        for each in result.sandboxes:
            each.kill()


def test_snapshots(sandbox: thaw.Sandbox, client: thaw.Client) -> None:
    snapshot = sandbox.snapshot("py-snap", labels={"k": "v"})
    assert (snapshot.name, snapshot.labels, snapshot.sandbox) == (
        "py-snap", {"k": "v"}, sandbox.name,
    )  # fmt: skip
    assert client.snapshot("py-snap").id == snapshot.id
    assert snapshot.id in [each.id for each in client.snapshots(sandbox.name)]
    with thaw.Sandbox.create(snapshot="py-snap", client=client) as later:
        assert later.info.snapshot == snapshot.id
        with pytest.raises(thaw.Conflict):
            client.delete_snapshot(snapshot.id)
    client.delete_snapshot(snapshot.id)
    with pytest.raises(thaw.NotFound):
        client.snapshot(snapshot.id)


def test_templates_and_pools(client: thaw.Client) -> None:
    assert "debian" in [each.name for each in client.templates()]
    assert client.template("debian").memory_bytes > 0
    with pytest.raises(thaw.NotFound):
        client.template("none")
    with pytest.raises(thaw.NotFound):
        thaw.Sandbox.create("none", client=client)
    assert isinstance(client.pools(), list)


def test_wrong_specifications(client: thaw.Client) -> None:
    with pytest.raises(thaw.Unsupported):
        thaw.Sandbox.create(internet=True, client=client)
    with pytest.raises(thaw.InvalidRequest):
        thaw.Sandbox.create(name="Not-a-Name", client=client)
    with pytest.raises(ValueError, match="together"):
        thaw.Sandbox.create("debian", snapshot="x", client=client)


def test_events(client: thaw.Client, daemon: Thawd) -> None:
    seen = []
    with thaw.Client(socket=daemon.socket) as other:
        response = other.stream("GET", "/v1/events?sandbox=ev", accept="text/event-stream")
        thaw.Sandbox.create(name="ev", client=client).kill()
        for event in response.events(60):
            seen.append(event)
            if event.name == "sandbox.deleted":
                break
        response.close()
    names = [event.name for event in seen]
    assert names[0] == "sandbox.created"
    assert "sandbox.started" in names
    with thaw.Client(socket=daemon.socket) as other:
        again = next(iter(other.events("ev", since=seen[0].id)))
    assert again.type == names[1]


# --- commands ---


def test_run(sandbox: thaw.Sandbox) -> None:
    result = sandbox.commands.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    result = sandbox.commands.run(
        ["sh", "-c", "echo $A $(pwd) $(id -u):$(id -g); echo e >&2"],
        env={"A": "\u00e4"},
        cwd="/tmp",
        user="12:34",
        combined=True,
    )
    assert (result.stdout, result.stderr) == ("\u00e4 /tmp 12:34\ne\n", "")
    died = sandbox.commands.run(["sh", "-c", "kill -SEGV $$"])
    assert (died.exit_code, died.signal) == (139, "SIGSEGV")
    with pytest.raises(thaw.CommandExit):
        sandbox.commands.run(["false"], check=True)


def test_run_binary_input_and_output(sandbox: thaw.Sandbox) -> None:
    data = os.urandom(3 << 20)
    assert sandbox.commands.run(["cat"], stdin=data).raw_stdout == data
    assert sandbox.commands.run(["cat"], stdin=io.BytesIO(data)).raw_stdout == data
    pieces = (data[at : at + 70_000] for at in range(0, len(data), 70_000))
    assert sandbox.commands.run(["cat"], stdin=pieces).raw_stdout == data
    # A command that does not read its input.
    assert sandbox.commands.run(["true"], stdin=data).ok
    cut = sandbox.commands.run(["cat"], stdin=data, max_output_bytes=1000)
    assert (cut.raw_stdout, cut.truncated) == (data[:1000], True)


def test_run_time_out(sandbox: thaw.Sandbox) -> None:
    result = sandbox.commands.run(["sh", "-c", "echo begun; sleep 600"], timeout=0.5)
    assert (result.stdout, result.exit_code, result.timed_out) == ("begun\n", 124, True)


@pytest.mark.parametrize(
    ("options", "stage", "errno"),
    [
        ({"cmd": ["/no/such"]}, "exec", "ENOENT"),
        ({"cmd": ["/etc/passwd"]}, "exec", "EACCES"),
        ({"cmd": ["true"], "cwd": "/no/such"}, "cwd", "ENOENT"),
    ],
)
def test_run_what_cannot_start(
    sandbox: thaw.Sandbox, options: dict[str, object], stage: str, errno: str
) -> None:
    for background in (False, True):
        with pytest.raises(thaw.SpawnError) as caught:
            sandbox.commands.run(**options, background=background)  # type: ignore[call-overload]
        assert (caught.value.stage, caught.value.errno) == (stage, errno)


def test_an_exception_in_a_callback_kills_the_command(sandbox: thaw.Sandbox, folder: str) -> None:
    def fail(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        sandbox.commands.run(["sh", "-c", "echo $$; exec sleep 600"], on_stdout=fail)
    for info in sandbox.commands.list():
        handle = sandbox.commands.connect(info.id)
        assert handle._wait_end(60).state == "ended"


def test_background(sandbox: thaw.Sandbox) -> None:
    script = "echo ready; while read line; do echo got $line; done; echo end >&2; exit 4"
    command = sandbox.commands.run(["sh", "-c", script], background=True, stdin_open=True)
    assert command.wait_for_log("ready", timeout=60).cursor == 0
    command.send_stdin("one\n")
    assert command.wait_for_log(regex="^got o.e$", timeout=60).line == "got one"
    with pytest.raises(thaw.Timeout):
        command.wait(timeout=0.05)
    again = sandbox.commands.connect(command.id)
    assert (again.pid, again.argv) == (command.pid, ["sh", "-c", script])
    again.send_stdin("two\n", eof=True)
    texts: list[str] = []
    result = command.wait(on_stdout=texts.append)
    assert (result.exit_code, result.stdout, result.stderr) == (
        4, "ready\ngot one\ngot two\n", "end\n",
    )  # fmt: skip
    assert "".join(texts) == result.stdout
    assert command.wait().stdout == result.stdout
    assert "".join(piece.text for piece in again.follow(0)) == "ready\ngot one\ngot two\nend\n"
    logs = command.logs(6, stream="stdout")
    assert b"".join(piece.data for piece in logs.entries) == b"got one\ngot two\n"
    assert (logs.ended, logs.exit_code, logs.dropped_bytes) == (True, 4, 0)
    with pytest.raises(thaw.CommandExit):
        command.wait_for_log("never", timeout=60)
    with pytest.raises(thaw.WrongState):
        command.send_signal(signal.SIGTERM)
    assert command.reconnect(0).state == "ended"
    command.forget()
    with pytest.raises(thaw.NotFound):
        command.info()


def test_signals(sandbox: thaw.Sandbox) -> None:
    command = sandbox.commands.run(["sleep", "600"], background=True)
    command.send_signal(signal.SIGUSR1)
    assert command.wait(timeout=60).signal == "SIGUSR1"
    command = sandbox.commands.run(["sh", "-c", "sleep 600 & sleep 600"], background=True)
    command.kill()
    result = command.wait(timeout=60)
    assert (result.exit_code, result.signal) == (137, "SIGKILL")


def test_a_command_goes_on_when_thawd_is_killed() -> None:
    """run() attaches again: every byte of the output comes, and the right end."""
    daemon = fresh_thawd("default_template = debian").start()
    try:
        with thaw.Client(socket=daemon.socket) as client:
            sandbox = thaw.Sandbox.create(client=client)
            go = daemon.folder / "go"
            script = f"echo 1; until [ -e {go} ]; do sleep 0.02; done; seq 2 20000; exit 9"
            begun = threading.Event()
            results: list[thaw.CommandResult] = []
            handle = sandbox.commands.run(["sh", "-c", script], background=True)

            def run() -> None:
                with thaw.Client(socket=daemon.socket) as other:
                    mine = thaw.Sandbox.connect(sandbox.name, client=other)
                    command = ["sh", "-c", script]
                    results.append(mine.commands.run(command, on_stdout=lambda text: begun.set()))

            thread = threading.Thread(target=run)
            thread.start()
            assert begun.wait(60)
            daemon.kill9()
            go.touch()
            daemon.start()
            thread.join(120)
            wanted = "".join(f"{n}\n" for n in range(1, 20001))
            assert len(results) == 1
            assert (results[0].exit_code, results[0].stdout == wanted) == (9, True)
            again = handle.wait(timeout=60)
            assert (again.exit_code, again.stdout == wanted) == (9, True)
            sandbox.kill()
    finally:
        remove_thawd(daemon)


# --- files ---


def test_files(sandbox: thaw.Sandbox, folder: str) -> None:
    files = sandbox.files
    files.make_dir("a/b", cwd=folder)
    with pytest.raises(thaw.FileError) as caught:
        files.make_dir("a/b", cwd=folder, recursive=False)
    assert caught.value.errno == "EEXIST"
    assert files.write("a/f", "text", cwd=folder, mode=0o640) == 4
    assert files.write("a/f", b"+more", cwd=folder, append=True) == 5
    assert files.read_text("a/f", cwd=folder) == "text+more"
    assert files.read(f"{folder}/a/f", offset=5, length=2) == b"mo"
    assert files.read(f"{folder}/a/f", offset=5) == b"more"
    stat = files.stat(f"{folder}/a/f")
    assert (stat.type, stat.size_bytes, stat.mode) == ("file", 9, 0o640)
    files.symlink("f", f"{folder}/a/l")
    assert files.stat(f"{folder}/a/l", follow=False).target == "f"
    assert files.stat(f"{folder}/a/l").type == "file"
    files.chmod(f"{folder}/a/f", 0o4755)
    files.chown(f"{folder}/a/f", 5, 6)
    stat = files.stat(f"{folder}/a/f")
    assert (stat.uid, stat.gid) == (5, 6)
    assert [(e.path, e.type) for e in files.list(folder, depth=2)] == [
        ("a", "directory"), ("a/b", "directory"), ("a/f", "file"), ("a/l", "symlink"),
    ]  # fmt: skip
    files.rename(f"{folder}/a/f", f"{folder}/a/g")
    assert not files.exists(f"{folder}/a/f")
    assert files.exists(f"{folder}/a/l", follow=False)
    assert not files.exists(f"{folder}/a/l")
    with pytest.raises(thaw.FileError) as caught:
        files.remove(f"{folder}/a")
    assert caught.value.errno in ("EISDIR", "ENOTEMPTY")
    files.remove(f"{folder}/a", recursive=True)
    with pytest.raises(thaw.FileNotFound) as caught:
        files.remove(f"{folder}/a")
    assert (caught.value.path, caught.value.errno) == (f"{folder}/a", "ENOENT")
    files.remove(f"{folder}/a", force=True)


def test_file_names_of_any_bytes(sandbox: thaw.Sandbox, folder: str) -> None:
    name = b"\xff \xc3\xa4?&#%+"
    path = f"{folder}/".encode() + name
    sandbox.files.write(path, b"x")
    (entry,) = sandbox.files.list(folder)
    assert entry.path == os.fsdecode(name)
    assert sandbox.files.read(f"{folder}/{entry.path}") == b"x"
    sandbox.files.rename(path, f"{folder}/b")
    assert sandbox.files.read(Path(folder) / "b") == b"x"


def test_file_rights(sandbox: thaw.Sandbox, folder: str) -> None:
    sandbox.files.write(f"{folder}/secret", b"x", mode=0o600)
    Path(folder).chmod(0o755)
    with pytest.raises(thaw.FileError) as caught:
        sandbox.files.read(f"{folder}/secret", user="65534:65534")
    assert caught.value.errno == "EACCES"


def test_tar(sandbox: thaw.Sandbox, folder: str) -> None:
    files = sandbox.files
    files.make_dir(f"{folder}/a/b")
    files.write(f"{folder}/a/b/f", b"12345")
    with files.tar_out(f"{folder}/a") as stream, io.BytesIO() as copy:
        stream.save(copy)
        copy.seek(0)
        with tarfile.open(fileobj=copy) as archive:
            assert "b/f" in [name.removeprefix("./") for name in archive.getnames()]
        files.make_dir(f"{folder}/copy")
        copy.seek(0)
        result = files.tar_in(f"{folder}/copy", copy)
    assert (result.size_bytes, result.warnings_total) == (5, 0)
    assert files.read(f"{folder}/copy/b/f") == b"12345"


def test_watch(sandbox: thaw.Sandbox, folder: str) -> None:
    with sandbox.files.watch(folder, recursive=True) as changes:
        sandbox.files.write(f"{folder}/f", b"x")
        sandbox.files.rename(f"{folder}/f", f"{folder}/g")
        sandbox.files.remove(f"{folder}/g")
        found = []
        for change in changes:
            found.append((change.type, change.path))
            if change.type == "delete":
                break
    assert found[0] == ("create", "f")
    assert ("move", "g") in found
    assert found[-1] == ("delete", "g")


def test_a_large_file_in_little_memory(sandbox: thaw.Sandbox, folder: str) -> None:
    size = 256 << 20
    block = os.urandom(1 << 20)
    written = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for _ in range(size >> 20):
            written.update(block)
            yield block

    tracemalloc.start()
    assert sandbox.files.write(f"{folder}/big", pieces()) == size
    back = hashlib.sha256()
    with sandbox.files.read_stream(f"{folder}/big") as stream:
        for piece in stream:
            back.update(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert back.digest() == written.digest()
    assert peak < 8 << 20


# --- terminals, ports ---


def test_terminal(sandbox: thaw.Sandbox) -> None:
    got: list[bytes] = []
    term = sandbox.pty.create(["/bin/sh", "-i"], cols=111, rows=22, on_data=got.append)
    term.send("stty size\n")
    term.read_until("22 111")
    term.resize(120, 40)
    term.send("stty size; echo $TERM\n")
    term.read_until("40 120")
    term.read_until("xterm-256color")
    seen = term.cursor
    term.disconnect()
    (info,) = [each for each in sandbox.commands.list() if each.id == term.id]
    assert (info.pty, info.state) == (True, "running")
    again = sandbox.pty.connect(term.id)
    assert b"22 111" in again.read_until("40 120")
    again.disconnect()
    again = sandbox.pty.connect(term.id, cursor=seen)
    again.send("echo only-$((1 + 2))\n")
    assert b"22 111" not in again.read_until("only-3")
    again.send("exit 6\n")
    assert again.wait(timeout=60).exit_code == 6
    assert b"".join(got)
    with pytest.raises(thaw.SpawnError):
        sandbox.pty.create(["/no/such"])
    with pytest.raises(thaw.NotFound):
        sandbox.pty.connect("0" * 32)


SERVER = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    data = b""
    while piece := c.recv(65536):
        data += piece
        if data.startswith(b"GET") and b"\\r\\n\\r\\n" in data:
            c.sendall(b"HTTP/1.1 418 X\\r\\nContent-Length: 6\\r\\n\\r\\nteapot")
            break
    else:
        c.sendall(data[::-1])
    c.close()
"""


def test_ports(sandbox: thaw.Sandbox) -> None:
    command = sandbox.commands.run([sys.executable, "-c", SERVER], background=True)
    port = int(command.wait_for_log(regex="^[0-9]+$", timeout=60).line)
    assert sandbox.ports.wait(port, timeout=60) >= 0
    with sandbox.ports.open(port) as connection:
        connection.send(b"abc")
        connection.end_sending()
        assert b"".join(connection.iter_bytes()) == b"cba"
    answer = sandbox.ports.request(port, "GET", "/x/y?z=1")
    assert (answer.status, answer.body) == (418, b"teapot")
    command.kill()
    command.wait(timeout=60)
    with pytest.raises(thaw.PortClosed):
        sandbox.ports.open(port)
    with pytest.raises(thaw.PortClosed):
        sandbox.ports.request(port)
    with pytest.raises(thaw.Timeout):
        sandbox.ports.wait(port, timeout=0.1)
    assert len(sandbox.ports.preview().token) == 32


# --- asyncio ---


def test_asyncio(daemon: Thawd, folder: str) -> None:
    async def main() -> None:
        async with (
            thaw.AsyncClient(socket=daemon.socket) as client,
            await thaw.AsyncSandbox.create(client=client) as sandbox,
        ):
            runs = [sandbox.commands.run(["echo", str(n)]) for n in range(8)]
            assert [r.stdout for r in await asyncio.gather(*runs)] == [f"{n}\n" for n in range(8)]

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(64):
                    yield bytes(65536)
                    await asyncio.sleep(0)

            result = await sandbox.commands.run(["wc", "-c"], stdin=pieces())
            assert int(result.stdout) == 64 * 65536
            assert await sandbox.files.write(f"{folder}/f", pieces()) == 64 * 65536
            async with await sandbox.files.read_stream(f"{folder}/f") as stream:
                assert sum([len(piece) async for piece in stream]) == 64 * 65536
            async with await sandbox.files.watch(folder) as changes:
                await sandbox.files.write(f"{folder}/g", b"")
                async for change in changes:
                    assert (change.type, change.path) == ("create", "g")
                    break
            term = await sandbox.pty.create(["/bin/sh", "-i"])
            await term.send("echo $((40 + 2)); exit 3\n")
            await term.read_until("42")
            assert (await term.wait(60)).exit_code == 3
            command = await sandbox.commands.run(["echo", "x"], background=True)
            assert (await command.wait(60)).stdout == "x\n"
            task = asyncio.ensure_future(sandbox.commands.run(["sleep", "600"]))
            while not [each for each in await sandbox.commands.list() if "600" in each.argv]:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (info,) = [each for each in await sandbox.commands.list() if "600" in each.argv]
            handle = await sandbox.commands.connect(info.id)
            assert (await handle.wait(60)).signal == "SIGKILL"
            fork = await sandbox.fork()
            await fork.sandboxes[0].kill()
            names = [info.name async for info in thaw.AsyncSandbox.list(client=client)]
            assert sandbox.name in names

    asyncio.run(main())


# --- TCP ---


def test_tcp_with_a_token() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = fresh_thawd("default_template = debian")
    token = daemon.folder / "token"
    token.write_text("t0ken-of-the-test-0123456789abcdef\n")
    token.chmod(0o600)
    try:
        daemon.start(f"listen = 127.0.0.1:{port}", f"token_file = {token}")
        url = f"http://127.0.0.1:{port}"
        for wrong in (None, "other-0123456789abcdef0123456789"):
            with thaw.Client(url=url, token=wrong) as client, pytest.raises(thaw.Unauthorized):
                client.info()
        with (
            thaw.Client(url=url, token=token.read_text().strip()) as client,
            thaw.Sandbox.create(client=client) as sandbox,
        ):
            assert sandbox.commands.run(["echo", "x"]).stdout == "x\n"
            assert sandbox.commands.run(["cat"], stdin=bytes(1 << 20)).raw_stdout == bytes(1 << 20)
    finally:
        remove_thawd(daemon)


# --- examples ---


def run_example(daemon: Thawd, *argv: str) -> str:
    env = {**os.environ, "THAW_SOCKET": daemon.socket}
    env["PYTHONPATH"] = str(TOP / "clients/python/src")
    done = subprocess.run(
        [sys.executable, *argv], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_tour(daemon: Thawd) -> None:
    """Create, write 1 GiB, read it back with the same digest, open a terminal, fork, kill."""
    out = run_example(daemon, str(EXAMPLES / "tour.py"), "--folder", str(daemon.folder))
    assert f"wrote {1 << 30} bytes" in out
    assert "read it back: the same" in out
    assert out.endswith("killed it\nall is well\n")


def test_example_many(daemon: Thawd) -> None:
    assert run_example(daemon, str(EXAMPLES / "many.py"), "--count", "6") == "0 1 4 9 16 25\n"


def blocks() -> list[tuple[str, str]]:
    """(section, code) of each block of Python of docs/python.md."""
    found = []
    section, code = "", None
    for line in (TOP / "docs/python.md").read_text().splitlines():
        if line.startswith("#") and code is None:
            section = line.strip("# ")
        elif line == "```python":
            code = []
        elif line == "```" and code is not None:
            found.append((section, "\n".join(code) + "\n"))
            code = None
        elif code is not None:
            code.append(line)
    return found


def test_the_page_has_blocks() -> None:
    assert len(blocks()) >= 10


@pytest.mark.parametrize(("section", "code"), blocks(), ids=lambda text: text.splitlines()[0][:20])
def test_the_page(daemon: Thawd, tmp_path: Path, section: str, code: str) -> None:
    path = tmp_path / "block.py"
    path.write_text(code)
    run_example(daemon, str(path))
