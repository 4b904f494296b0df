# SPDX-License-Identifier: Apache-2.0
"""thawd's HTTP layer: with handlers made for it (http_rig.c), and thawd itself without sandboxes.

THAW_HTTP_RIG and THAWD_BIN name other binaries, such as sanitized ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import openapi_check
from api_client import ApiClient, UnixConnection

TOP = Path(__file__).resolve().parent.parent.parent
RIG = Path(os.environ.get("THAW_HTTP_RIG", TOP / "build/release/http-rig"))
THAWD = Path(os.environ.get("THAWD_BIN", TOP / "build/release/thawd"))
TOKEN = "0123456789abcdef-token"
WAIT_S = int(os.environ.get("THAW_TEST_WAIT_S", "60"))
MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(not RIG.exists(), reason=f"{RIG} is not built"),
    pytest.mark.skipif(not THAWD.exists(), reason=f"{THAWD} is not built"),
]


def eventually(what: Callable[[], object], wait_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + wait_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """The rig, or thawd, with a configuration of its own."""

    def __init__(self, folder: Path, binary: Path = RIG) -> None:
        self.folder, self.binary = folder, binary
        self.socket = str(folder / "t.sock")
        self.config = folder / "thaw.conf"
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def popen(self, *lines: str, **env: str) -> subprocess.Popen[bytes]:
        head = [f"socket = {self.socket}", f"state_folder = {self.folder}/state"]
        self.config.write_text("\n".join([*head, *lines, ""]))
        argv = [str(self.binary), str(self.config)]
        if self.binary == THAWD:
            argv.insert(1, "--config")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, **env}
            )
        return self.process

    def start(self, *lines: str, **env: str) -> Server:
        process = self.popen(*lines, **env)
        assert eventually(lambda: self.answers() or process.poll() is not None)
        assert process.poll() is None, self.said()
        return self

    def start_tcp(self, *lines: str) -> Server:
        self.port = free_port()
        token = self.folder / "token"
        token.write_text(f"# a comment\n\n{TOKEN}\n")
        token.chmod(0o600)
        return self.start(f"listen = 127.0.0.1:{self.port}", f"token_file = {token}", *lines)

    def answers(self) -> bool:
        try:
            return self.get("/healthz").status == 200
        except (OSError, http.client.HTTPException):
            return False

    def said(self) -> str:
        return self.log.read_text()

    def hears(self, text: str, count: int = 1) -> bool:
        return eventually(lambda: self.said().count(text) >= count)

    def connection(self) -> UnixConnection:
        return UnixConnection(self.socket)

    def tcp(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(self.socket)
        return sock

    def get(
        self,
        target: str,
        method: str = "GET",
        body: object = None,
        headers: dict[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Reply:
        mine = connection or self.connection()
        try:
            mine.request(method, target, body, headers or {})  # type: ignore[arg-type]
            response = mine.getresponse()
            return Reply(response, response.read())
        finally:
            if connection is None:
                mine.close()

    def stop(self) -> int:
        assert self.process
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(WAIT_S)

    def open_fds(self) -> int:
        assert self.process
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


class Reply:
    def __init__(self, response: http.client.HTTPResponse, body: bytes) -> None:
        self.status, self.body = response.status, body
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, object]:
        return json.loads(self.body)["error"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A rig that is not started yet; what it serves must have ended well."""
    made = Server(tmp_path)
    yield made
    if made.process:
        assert made.stop() in (0, 1, 2), made.said()
        assert "ERROR: " not in made.said(), made.said()  # of a sanitizer
        assert "runtime error" not in made.said(), made.said()


@pytest.fixture
def rig(server: Server) -> Server:
    return server.start()


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


def checksum(data: bytes) -> int:
    total = 0
    for byte in data:
        total = (total * 31 + byte) & 0xFFFFFFFFFFFFFFFF
    return total & 0x7FFFFFFF


# --- bodies and answers -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 131071, 131072, 131073, 3 * MIB])
@pytest.mark.parametrize("chunked", [False, True])
def test_upload(rig: Server, size: int, chunked: bool) -> None:
    data = bytes(i * 7 % 251 for i in range(1000)) * (size // 1000 + 1)
    data = data[:size]
    body: object = data
    headers = {}
    if chunked:
        body = (data[i : i + 50000] for i in range(0, size, 50000))
        headers = {"Transfer-Encoding": "chunked"}
    connection = rig.connection()
    connection.request("POST", "/count", body, headers, encode_chunked=chunked)  # type: ignore[arg-type]
    reply = json.loads(connection.getresponse().read())
    assert reply["bytes"] == size
    if size <= 131073:
        assert reply["sum"] == checksum(data)
    assert rig.get("/healthz", connection=connection).status == 200  # the same connection
    connection.close()


@pytest.mark.parametrize("size", [0, 1, 9999, 131072, 5 * MIB])
@pytest.mark.parametrize("chunked", [False, True])
def test_download(rig: Server, size: int, chunked: bool) -> None:
    connection = rig.connection()
    target = f"/bytes?n={size}" + ("&chunked=1" if chunked else "")
    reply = rig.get(target, connection=connection)
    assert reply.status == 200
    assert reply.headers.get("content-length") == (None if chunked else str(size))
    assert reply.body == (bytes(i & 255 for i in range(10000)) * (size // 10000 + 1))[:size]
    assert rig.get("/healthz", connection=connection).status == 200
    connection.close()


def test_head(rig: Server) -> None:
    connection = rig.connection()
    reply = rig.get("/bytes?n=1000000000", "HEAD", connection=connection)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == "1000000000"
    reply = rig.get("/healthz", "HEAD", connection=connection)
    assert (reply.status, reply.body) == (200, b"")
    assert rig.get("/healthz", connection=connection).json == {"ok": True}
    connection.close()
    # Of unknown length: that there is nothing behind the head is told by the end.
    with rig.raw() as sock:
        sock.sendall(b"HEAD /bytes?n=7&chunked=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        data = read_all(sock)
    assert data.startswith(b"HTTP/1.1 200 ")
    assert data.endswith(b"\r\n\r\n")
    assert data.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("target", ["/short", "/bytes?n=100000&chunked=1&fail=1"])
def test_part_is_never_taken_for_the_whole(rig: Server, target: str) -> None:
    with pytest.raises(http.client.IncompleteRead):
        rig.get(target)


def test_pipelined_requests(rig: Server) -> None:
    with rig.raw() as sock:
        one = b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        sock.sendall(one * 3 + last)
        data = read_all(sock)
    assert data.count(b"HTTP/1.1 200 OK") == 4
    assert data.count(b'"bytes":3') == 3


def test_http_1_0(rig: Server) -> None:
    with rig.raw() as sock:
        sock.sendall(b"GET /bytes?n=5&chunked=1 HTTP/1.0\r\nHost: x\r\n\r\n")
        assert read_all(sock).endswith(b"\r\n\r\n\x00\x01\x02\x03\x04")


def test_handler_without_an_answer(rig: Server) -> None:
    reply = rig.get("/silent")
    assert (reply.status, reply.error["code"]) == (500, "internal")


def test_body_or_something_else(rig: Server) -> None:
    assert rig.get("/either", "POST", b"hello").json == {"got": 5}
    with rig.raw() as sock:
        head = b"POST /either?pipe=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        sock.sendall(head)
        # Nothing of the body is sent: the pipe wakes it.
        assert rig.hears("rig: got -11")
        sock.sendall(b"hello")
        assert b'{"got":-11}' in sock.recv(4096)


# --- answers before the end of the body ---------------------------------------------------------


def test_early_answer_to_a_small_body(rig: Server) -> None:
    connection = rig.connection()
    for _ in range(3):  # the connection stays
        reply = rig.get("/early", "PUT", b"x" * 1000, connection=connection)
        assert (reply.status, reply.error["code"]) == (507, "no_space")
    connection.close()


@pytest.mark.parametrize("framing", ["Content-Length: 100000000", "Transfer-Encoding: chunked"])
def test_early_answer_comes_inside_a_large_body(rig: Server, framing: str) -> None:
    with rig.raw() as sock:
        sock.sendall(b"PUT /early HTTP/1.1\r\nHost: x\r\n" + framing.encode() + b"\r\n\r\n")
        sock.sendall(b"10\r\n0123456789abcdef\r\n")
        data = b""
        while b"no_space" not in data:
            piece = sock.recv(4096)
            assert piece, data
            data += piece
        assert data.startswith(b"HTTP/1.1 507 ")
        assert b"X-Early: yes" in data
        sock.sendall(b"10\r\n0123456789abcdef\r\n")  # who still sends is not cut off at once


def test_expect_continue(rig: Server) -> None:
    head = "{} HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    with rig.raw() as sock:
        sock.sendall(head.format("POST /count").encode())
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert b'"bytes":3' in sock.recv(4096)
    for target, status in (("PUT /early", 507), ("PUT /nowhere", 404), ("DELETE /early", 405)):
        with rig.raw() as sock:
            sock.sendall(head.format(target).encode())
            assert read_all(sock).startswith(f"HTTP/1.1 {status} ".encode())  # and no 100


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "status", "code", "about"),
    [
        ("GET", "/nowhere", 404, "not_found", "/nowhere"),
        ("GET", "/", 404, "not_found", "/"),
        ("GET", "/healthz/", 404, "not_found", "/healthz/"),
        ("POST", "/healthz", 405, "method_not_allowed", "POST"),
        ("GET", "/count", 405, "method_not_allowed", "PUT, POST"),
        ("GET", "/healthz?a=1", 400, "unknown_field", "'a'"),
        ("GET", "/bytes?n=x", 400, "invalid_request", "'n'"),
        ("GET", "/bytes?n=-1", 400, "invalid_request", "'n'"),
        ("GET", "/bytes?n=%zz", 400, "invalid_request", "percent"),
        ("GET", "/who/a%2fb", 400, "invalid_request", "percent"),
        ("GET", "/who/a%00b", 400, "invalid_request", "percent"),
        ("GET", "/who/%4", 400, "invalid_request", "percent"),
        ("GET", "/" + "a" * 9000, 414, "too_large", "8192"),
    ],
)
def test_refused(rig: Server, method: str, target: str, status: int, code: str, about: str) -> None:
    connection = rig.connection()
    reply = rig.get(target, method, connection=connection)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert about in str(reply.error["message"])
    assert reply.headers["content-type"] == "application/json"
    if status == 405:
        assert "allow" in reply.headers
    assert rig.get("/healthz", connection=connection).status == 200
    connection.close()


def test_parameters(rig: Server) -> None:
    reply = rig.get("/who/a%20b%C3%A4", headers={"Accept": "text/html, text/event-stream;q=0.9"})
    assert reply.json["name"] == "a bä"
    assert reply.json["sse"] is True
    assert reply.json["who"] == f"uid {os.getuid()} pid {os.getpid()}"
    assert rig.get("/any/x/y%2Fz?thaw=%zz", "PROPFIND").json["rest"] == "x/y/z"
    assert rig.get("/any/").json["rest"] == ""
    assert rig.get("/any/x", headers={"Accept": "*/*"}).json["sse"] is False
    with rig.raw() as sock:  # the absolute form
        sock.sendall(b"GET http://host/who/me HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"name":"me"' in sock.recv(4096)


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3\r\nContent-Length: 3",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Content-Length: +3",
        "Content-Length: 3, 3",
        "Content-Length: 0x3",
        "Content-Length: 99999999999999999999",
    ],
)
def test_framing_has_one_meaning(rig: Server, headers: str) -> None:
    smuggled = b"0\r\n\r\nGET /who/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    with rig.raw() as sock:
        head = f"POST /count HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"
        sock.sendall(head.encode() + smuggled)
        data = read_all(sock)  # it closes
    assert data.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), data
    assert b"smuggled" not in data


def test_header_limits(rig: Server) -> None:
    assert rig.get("/healthz", headers={f"X-{i}": "1" for i in range(100)}).status == 200
    reply = rig.get("/healthz", headers={f"X-{i}": "1" for i in range(200)})
    assert (reply.status, reply.error["code"]) == (431, "too_large")
    assert rig.get("/healthz", headers={"X": "a" * 30000}).status == 200
    assert rig.get("/healthz", headers={"X": "a" * 40000}).status == 431
    with rig.raw() as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * MIB)
        assert read_all(sock).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    ("body", "about"),
    [
        (b"[]", "not an object"),
        (b"{", "line 1"),
        (b'{"a":1,"a":2}', "duplicate"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "deep"),
        (b'{"a":"\xff"}', "0xff"),
        (b'{"a":"\\u0000"}', "\\u0000"),
        (b"{} {}", "line 1"),
    ],
)
def test_json_refused(rig: Server, body: bytes, about: str) -> None:
    reply = rig.get("/json", "POST", body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert about in str(reply.error["message"])


def test_json(server: Server) -> None:
    server.start("max_json_size = 1KiB")
    assert server.get("/json", "POST", b'{"a": [1, "x"]}').json == {"a": [1, "x"]}
    assert server.get("/json", "POST", b"").json == {}
    deep: object = 1
    for _ in range(60):
        deep = [deep]
    body = json.dumps({"a": deep}).encode()
    assert server.get("/json", "POST", body).json == {"a": deep}
    for chunked in (False, True):
        big = b'{"a":"' + b"x" * 2000 + b'"}'
        connection = server.connection()
        connection.request("POST", "/json", iter([big]) if chunked else big, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["details"] == {"max_bytes": 1024}
        connection.close()


# --- clients that are slow, or leave ------------------------------------------------------------


def drip(sock: socket.socket, data: bytes = b"a") -> None:
    """Bytes one after the other until the other side has closed."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        readable, _, _ = select.select([sock], [], [], 0.02)
        if readable:
            with contextlib.suppress(ConnectionError):
                if sock.recv(4096):
                    continue
            return
        try:
            sock.send(data)
        except (BrokenPipeError, ConnectionResetError):
            return
    pytest.fail("it was not cut")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ",
        b"POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        b"PUT /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        b"PUT /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
    ],
    ids=["first", "headers", "json", "early", "refused"],
)
def test_slow_senders_are_cut(server: Server, head: bytes) -> None:
    server.start("header_timeout = 500ms", "body_timeout = 500ms")
    with server.raw() as sock:
        sock.sendall(head)
        drip(sock)


def test_slow_json_is_told_why(server: Server) -> None:
    server.start("body_timeout = 300ms")
    with server.raw() as sock:
        sock.sendall(b"POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        data = read_all(sock)
    assert data.startswith(b"HTTP/1.1 408 ")
    assert b'"timeout"' in data


def test_idle_connections_are_cut(server: Server) -> None:
    server.start("idle_timeout = 300ms", "header_timeout = 1h")
    with server.raw() as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 200")


def test_client_that_does_not_read(server: Server) -> None:
    server.start("send_timeout = 500ms")
    with server.raw() as sock:
        sock.sendall(b"GET /bytes?n=100000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert server.hears("rig: stream ended early")
    assert server.get("/healthz").status == 200


def test_clients_leave(rig: Server) -> None:
    heads = [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
        b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n",
        b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
        b"GET /bytes?n=100000000 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /wait?stream=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo/1\r\n\r\n",
    ]
    assert rig.get("/healthz").status == 200
    before = rig.open_fds() + 2
    for _ in range(5):
        for head in heads:
            with rig.raw() as sock:
                sock.sendall(head)
                if b"/wait" in head or b"upgrade" in head:
                    select.select([sock], [], [], 0.05)
    assert rig.hears("rig: client left", 10)
    # MHD closes a connection's descriptor when something else happens in that thread.
    assert eventually(lambda: rig.answers() and rig.open_fds() <= before), rig.said()
    assert rig.get("/healthz").status == 200


def raise_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count and os.geteuid() != 0:
            pytest.skip(f"the limit of open files is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))


@pytest.mark.parametrize("limit", [20000, 500], ids=["all-fit", "limit-500"])
def test_ten_thousand_slow_clients(server: Server, limit: int) -> None:
    """They harm nobody, and are gone in time."""
    raise_files(12000)
    server.start(f"max_connections = {limit}", "header_timeout = 3s")
    socks: list[socket.socket] = []
    try:
        for i in range(10000):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(server.socket)
            sock.setblocking(False)
            socks.append(sock)
            with contextlib.suppress(OSError):
                sock.send(b"G")
            if i % 500 == 0:
                assert server.get("/healthz").status == 200
        left = set(socks)
        deadline = time.monotonic() + WAIT_S
        while left and time.monotonic() < deadline:
            assert server.get("/healthz").status == 200
            for sock in list(left):
                try:
                    sock.send(b"a")
                except BlockingIOError:
                    continue
                except OSError:
                    left.discard(sock)
        assert not left, f"{len(left)} are still there"
        assert server.get("/healthz").status == 200
    finally:
        for sock in socks:
            sock.close()


def test_as_many_requests_as_are_allowed(server: Server) -> None:
    server.start_tcp("max_requests = 4")  # one of them for HTTP_RESERVED
    socks = []
    for _ in range(3):
        sock = server.raw()
        sock.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        socks.append(sock)
    assert server.hears("rig: waits", 3)
    reply = server.get("/who/x")
    assert (reply.status, reply.error["code"]) == (503, "capacity")
    assert server.get("/healthz").status == 200
    assert int(reply.headers["retry-after"]) >= 1
    # The other listener has its own.
    authorized = {"Authorization": f"Bearer {TOKEN}"}
    assert server.get("/who/x", headers=authorized, connection=server.tcp()).status == 200
    for sock in socks:
        sock.close()
    assert eventually(lambda: server.get("/who/x").status == 200)


# --- upgrades -----------------------------------------------------------------------------------

UPGRADE = (
    b"GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo/1\r\n"
)


def read_head(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        assert piece, data
        data += piece
    return data


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, data
        data += piece
    return data


@pytest.mark.parametrize("early", [b"", b"early bytes"])
@pytest.mark.parametrize("kind", ["unix", "tls"])
def test_upgrade(server: Server, early: bytes, kind: str) -> None:
    if kind == "tls":
        sock: socket.socket = start_tls(server)
        head = UPGRADE + f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    else:
        sock = server.start().raw()
        head = UPGRADE + b"\r\n"
    with sock:
        sock.sendall(head + early)
        answer = read_head(sock)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"Upgrade: echo/1" in answer
        assert read_exactly(sock, len(early)) == early
        for size in (1, 1000, 300000):
            data = os.urandom(size)
            sender = threading.Thread(target=sock.sendall, args=(data,))
            if kind == "unix":
                sender.start()
                assert read_exactly(sock, size) == data
                sender.join()
            elif size < 2000:  # one thread at a time may use a TLS socket
                sock.sendall(data)
                assert read_exactly(sock, size) == data
        if kind == "unix":
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"bye"
    assert server.hears("rig: upgrade ended")


def test_upgrade_refused(rig: Server) -> None:
    assert rig.get("/upgrade").status == 400
    assert rig.get("/upgrade", headers={"Upgrade": "echo/1"}).status == 400
    with rig.raw() as sock:
        sock.sendall(UPGRADE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n")
        assert not read_all(sock).startswith(b"HTTP/1.1 101")


# --- TCP, TLS, tokens ---------------------------------------------------------------------------


def start_tls(server: Server) -> ssl.SSLSocket:
    cert, key = server.folder / "cert.pem", server.folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server.start_tcp(f"tls_cert = {cert}", f"tls_key = {key}")
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    sock = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
    return context.wrap_socket(sock)


def test_tls(server: Server) -> None:
    with start_tls(server) as sock:
        head = f"GET /bytes?n=1000000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall(head.encode() + b"Connection: close\r\n\r\n")
        assert len(read_all(sock).partition(b"\r\n\r\n")[2]) == 1000000


def test_tokens(server: Server) -> None:
    server.start_tcp()

    def status(header: str | None, target: str = "/who/x") -> int:
        headers = {} if header is None else {"Authorization": header}
        return server.get(target, headers=headers, connection=server.tcp()).status

    assert status(None, "/healthz") == 200
    assert status(f"Bearer {TOKEN}") == 200
    assert status(f"bearer  {TOKEN}") == 200
    for wrong in (None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
        assert status(wrong) == 401, wrong
    assert status(f"Bearer {TOKEN[:-1]}") == 401
    assert status("Bearer # a comment") == 401
    # Who has no token does not learn which paths there are.
    assert status(None, "/nowhere") == 401
    assert status("Bearer x", "/who/x?unknown=1") == 401
    reply = server.get("/who/x", connection=server.tcp())
    assert reply.headers["www-authenticate"].startswith("Bearer")
    reply = server.get(
        "/who/x", headers={"Authorization": f"Bearer {TOKEN}"}, connection=server.tcp()
    )
    assert reply.json["who"] == "token from 127.0.0.1"
    # Another token counts after SIGHUP, and a bad file changes nothing.
    assert server.process
    token = server.folder / "token"
    token.write_text("another-token-0123456789\n")
    server.process.send_signal(signal.SIGHUP)
    assert server.hears("rig: reload 0")
    assert status(f"Bearer {TOKEN}") == 401
    assert status("Bearer another-token-0123456789") == 200
    token.chmod(0o644)
    server.process.send_signal(signal.SIGHUP)
    assert server.hears("rig: reload -1")
    assert status("Bearer another-token-0123456789") == 200
    assert TOKEN not in server.said()


@pytest.mark.parametrize(
    ("lines", "mode", "text", "about"),
    [
        (["listen = 127.0.0.1:1"], None, "", "token_file"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], None, "", "umask 077"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], 0o644, TOKEN, "chmod 0600"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], 0o620, TOKEN, "chmod 0600"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], 0o600, "short", "16"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], 0o600, "# none\n", "has no token"),
        (["listen = 127.0.0.1:1", "token_file = TOKEN"], 0o600, "a b c d e f g h i", "blanks"),
        (["listen = nowhere", "token_file = TOKEN"], 0o600, TOKEN, "ADDRESS:PORT"),
        (["listen = 127.0.0.1:0", "token_file = TOKEN"], 0o600, TOKEN, "ADDRESS:PORT"),
        (["tls_cert = /x"], None, "", "tls_key"),
        (["preview_listen = 127.0.0.1:1"], None, "", "preview_domain"),
    ],
)
def test_does_not_start(
    server: Server, lines: list[str], mode: int | None, text: str, about: str
) -> None:
    token = server.folder / "token"
    if mode is not None:
        token.write_text(text)
        token.chmod(mode)
    process = server.popen(*(line.replace("TOKEN", str(token)) for line in lines))
    assert process.wait(WAIT_S) != 0
    assert about in server.said()


# --- the socket, start and end ------------------------------------------------------------------


def test_socket_is_taken_over_when_nobody_listens(server: Server) -> None:
    server.start("socket_mode = 0600", "socket_group = ")
    assert Path(server.socket).stat().st_mode & 0o777 == 0o600
    assert server.process
    server.process.kill()
    server.process.wait()
    assert Path(server.socket).exists()
    server.start()
    assert Path(server.socket).stat().st_mode & 0o777 == 0o660
    first = server.process
    second = server.popen()  # a living one's is not
    assert second.wait(WAIT_S) == 1
    assert "another thawd" in server.said()
    server.process = first
    assert server.get("/healthz").status == 200


def test_end_with_streams_open(server: Server) -> None:
    server.start("stop_timeout = 1s")
    heads = [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /heal",
        b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /wait?stream=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
    ]
    socks = []
    for head in heads:
        socks.append(server.raw())
        socks[-1].sendall(head)
    assert server.hears("rig: waits", 3)
    assert server.stop() == 0
    assert server.said().count("rig: stopping") == 3
    assert not Path(server.socket).exists()
    assert b"204" in read_all(socks[2])  # what ran was answered
    for sock in socks:
        read_all(sock)
        sock.close()


def test_end_with_an_upgraded_connection(server: Server) -> None:
    """One whose handler does not heed the end is cut off in time."""
    server.start("stop_timeout = 300ms")
    with server.raw() as sock:
        sock.sendall(UPGRADE + b"\r\n")
        read_head(sock)
        assert server.stop() == 0
        read_all(sock)


# --- events, audit log --------------------------------------------------------------------------


class Events:
    def __init__(self, server: Server, target: str, last: str | None = None) -> None:
        self.connection = server.connection()
        headers = {} if last is None else {"Last-Event-ID": last}
        self.connection.request("GET", target, headers=headers)
        self.response = self.connection.getresponse()
        assert self.response.status == 200

    def next(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            key, _, value = line.partition(": ")
            fields[key] = value
        return fields

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def test_events(server: Server) -> None:
    server.start("event_ring = 16")
    live = Events(server, "/v1/events?sandbox=a")
    for name in ("a", "b", "a"):
        server.get(f"/emit?sandbox={name}", "POST")
    first, second = live.next(), live.next()
    assert first["event"] == "sandbox.started"
    data = json.loads(first["data"])
    assert data["id"] == first["id"]
    assert (data["type"], data["sandbox"], data["details"]) == ("sandbox.started", "a", {"left": 0})
    assert data["time"].endswith("Z")
    assert int(second["id"]) == int(first["id"]) + 2  # b's was between them
    again = Events(server, "/v1/events?since=0", last=first["id"])  # the header wins
    assert json.loads(again.next()["data"])["sandbox"] == "b"
    assert again.next()["id"] == second["id"]
    again.close()
    # All from the beginning; then one that has fallen out of the ring.
    start = Events(server, "/v1/events?since=0")
    assert start.next()["id"] == first["id"]
    start.close()
    server.get("/emit?n=100&sandbox=z", "POST")
    late = Events(server, "/v1/events", last=first["id"])
    gap = late.next()
    assert gap["event"] == "gap"
    assert late.next()["id"] == json.loads(gap["data"])["id"]
    late.close()
    live.close()


def test_many_event_readers(server: Server) -> None:
    server.start("event_ring = 1000")
    readers = [Events(server, "/v1/events") for _ in range(30)]
    server.get("/emit?n=500", "POST")
    for reader in readers:
        ids = [int(reader.next()["id"]) for _ in range(500)]
        assert ids == list(range(ids[0], ids[0] + 500))
        reader.close()


def test_audit_log(server: Server) -> None:
    log = server.folder / "audit"
    server.start(f"audit_log = {log}")
    server.get("/emit?sandbox=a", "POST")
    entry = json.loads(log.read_text())
    assert entry["time"].endswith("Z")
    del entry["time"]
    who = f"uid {os.getuid()} pid {os.getpid()}"
    assert entry == {"who": who, "action": "emit", "sandbox": "a", "result": "ok", "details": {}}
    log.rename(server.folder / "old")  # as logrotate does
    server.get("/emit?sandbox=b", "POST")
    assert not log.exists()
    assert server.process
    server.process.send_signal(signal.SIGHUP)
    assert server.hears("rig: reload")
    server.get("/emit?sandbox=c", "POST")
    assert json.loads(log.read_text())["sandbox"] == "c"
    assert len((server.folder / "old").read_text().splitlines()) == 2


# --- thawd itself -------------------------------------------------------------------------------


@pytest.fixture
def thawd(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, THAWD)
    yield made
    if made.process:
        made.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_what_thawd_says_of_itself(thawd: Server) -> None:
    thawd.start()
    api = ApiClient(thawd.socket)
    for target in ("/healthz", "/version", "/openapi.json", "/v1/info"):
        assert api.call("GET", target).status == 200
    # The file, as this version's.
    served, version = (api.call("GET", target).json for target in ("/openapi.json", "/version"))
    info = {**openapi_check.document()["info"], "version": version["version"]}
    assert served == {**openapi_check.document(), "info": info}
    text = api.call("GET", "/metrics").body.decode()
    seen: set[str] = set()
    for line in text.splitlines():
        name = line.split()[2] if line.startswith("# ") else line.split("{")[0].split()[0]
        if line.startswith("# TYPE"):
            assert name not in seen, f"{name} is there twice"
            seen.add(name)
        elif not line.startswith("#"):
            base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
            assert name in seen or base in seen, line
            float(line.rsplit(" ", 1)[1])
    assert {"thaw_build_info", "thaw_starts_total", "thaw_start_seconds"} <= seen
    assert "bench" not in thawd.said()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_systemd(thawd: Server) -> None:
    path = thawd.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(WAIT_S)
        thawd.start("body_timeout = 1s", NOTIFY_SOCKET=str(path), WATCHDOG_USEC="100000")
        assert thawd.process
        assert "READY=1" in sock.recv(4096).decode()
        assert "WATCHDOG=1" in sock.recv(4096).decode()
        text = thawd.config.read_text().replace("body_timeout = 1s", "body_timeout = 2s")
        thawd.config.write_text(text + "max_requests = 77\n")
        thawd.process.send_signal(signal.SIGHUP)
        said = []
        while "RELOADING=1" not in " ".join(said) or "READY=1" not in said:
            said.append(sock.recv(4096).decode())
        assert thawd.hears("max_requests has changed; this takes a restart")
        assert "body_timeout has changed" not in thawd.said()
        thawd.process.terminate()
        while said[-1] != "STOPPING=1":
            said.append(sock.recv(4096).decode())
        assert thawd.process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("nonsense", ":1: 'nonsense' is not 'name = value'"),
        ("\n# x\nsoket = /x", ":3: soket: no such setting"),
        ("socket = x", ":1: socket: 'x' is not an absolute path"),
        ("socket = /a\nsocket = /b", ":2: socket: set twice"),
        ("max_requests = many", ":1: max_requests: 'many' is not a number"),
        ("max_requests = 1", ":1: max_requests: 1 is out of bounds: 4 to 20000"),
        ("header_timeout = 10", "'10' is not a duration such as"),
        ("max_json_size = 1X", "'1X' is not a size such as"),
        ("socket_mode = 0888", "'0888' is not an octal mode"),
        ("audit_argv = maybe", "'maybe' is neither 'on' nor 'off'"),
        ("audit_log = " + "x" * 5000, ":1: longer than"),
    ],
)
def test_settings_refused(thawd: Server, text: str, about: str) -> None:
    thawd.config.write_text(text)
    proc = subprocess.run(
        [str(THAWD), "--config", str(thawd.config), "--check"], capture_output=True, text=True
    )
    assert proc.returncode == 1
    assert f"{thawd.config}" in proc.stderr
    assert about in proc.stderr


def test_settings(thawd: Server) -> None:
    missing = subprocess.run([str(THAWD), "--config", "/nowhere", "--check"], capture_output=True)
    assert missing.returncode == 1
    thawd.config.write_text("max_requests=  5 \n  # x\n\nheader_timeout = 2m\r\naudit_argv = yes\n")
    argv = [str(THAWD), "--config", str(thawd.config), "--check"]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "max_requests = 5\n" in out
    assert "header_timeout = 120000ms\n" in out
    assert "audit_argv = on\n" in out
    # What it prints is a file that says the same.
    thawd.config.write_text(out)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == out
    manual = (TOP / "docs/man/thaw.conf.5").read_text().replace("\\-", "-")
    for line in out.splitlines():
        name = line.split(" ")[0]
        assert f".B {name}\n" in manual, f"{name} is not in thaw.conf(5)"
    assert "Usage" in subprocess.run([str(THAWD), "--help"], capture_output=True, text=True).stdout
