# SPDX-License-Identifier: Apache-2.0
"""Ports of sandboxes through thawd: HTTP, WebSocket, raw TCP, waiting, previews; and servers that
misbehave. The "guest" is a shim on this machine, so its servers are threads of the test."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import daemon
from api_client import Answer
from daemon import Thawd, eventually

pytestmark = daemon.needs_thawd
WAIT_S = daemon.WAIT_S
BOX = "/v1/sandboxes/web"


class Guest:
    """A server on a port: @serve has the connection, in a thread each."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.serve = serve
        self.seen: list[bytes] = []
        self.ended = threading.Event()  # a connection has been seen to its end
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                sock.settimeout(WAIT_S)
                threading.Thread(target=self._one, args=(sock,), daemon=True).start()

    def _one(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            self.serve(sock)
        self.ended.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def read_head(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            return b""
        data += piece
    return data


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            break
        data += piece
    return data


def read_rest(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            data += piece
    return data


def read_body(sock: socket.socket, head: bytes) -> bytes:
    fields = headers_of(head)
    if "content-length" in fields:
        return read_exactly(sock, int(fields["content-length"][0]))
    if "transfer-encoding" not in fields:
        return b""
    data, file = b"", sock.makefile("rb")
    while size := int(file.readline().split(b";")[0], 16):
        data += file.read(size)
        file.readline()
    file.readline()
    return data


def headers_of(head: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        if line:
            name, _, value = line.partition(":")
            found.setdefault(name.lower(), []).append(value.strip())
    return found


def serve_report(sock: socket.socket) -> None:
    """What was asked, as JSON."""
    head = read_head(sock)
    body = read_body(sock, head)
    line = head.split(b"\r\n")[0].decode()
    text = json.dumps({"line": line, "headers": headers_of(head), "body": len(body)}).encode()
    sock.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: yes\r\n"
        b"Content-Length: %d\r\n\r\n" % len(text) + (b"" if line.startswith("HEAD") else text)
    )


def serve_bytes(answer: bytes, after: Callable[[socket.socket], None] | None = None) -> Any:  # noqa: ANN401
    """@answer to whatever is asked."""

    def serve(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(answer)
        if after:
            after(sock)

    return serve


@pytest.fixture(scope="module")
def shared() -> Iterator[Thawd]:
    made = daemon.fresh_thawd(
        "port_head_timeout = 1500ms",
        f"preview_listen = 127.0.0.1:{free_port()}",
        "preview_domain = p.example.org",
    )
    try:
        made.start()
        made.create("web")
        yield made
        assert made.stop() == 0
        said = made.log.read_text()
        assert "ERROR: " not in said, said  # of a sanitizer
        assert "runtime error" not in said, said
    finally:
        daemon.remove_thawd(made)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture
def guest() -> Iterator[Callable[[Any], Guest]]:
    made: list[Guest] = []

    def make(serve: Callable[[socket.socket], None]) -> Guest:
        made.append(Guest(serve))
        return made[-1]

    yield make
    for one in made:
        one.close()


def call(
    thawd: Thawd,
    port: int,
    rest: str = "/",
    method: str = "GET",
    **more: Any,  # noqa: ANN401
) -> Answer:
    check = bool(more.pop("check", False))
    return thawd.api.call(method, f"{BOX}/ports/{port}{rest}", check=check, **more)


# --- HTTP ---------------------------------------------------------------------------------------


def test_request_and_answer(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    port = guest(serve_report).port
    sent = {
        "Connection": "close, X-Private",
        "X-Private": "1",
        "X-Public": "2",
        "Authorization": "Bearer thawd's",
        "X-Forwarded-For": "6.6.6.6",
        "X-Forwarded-Host": "evil",
        "Forwarded": "for=6.6.6.6",
        "X-Thaw-Token": "secret",
        "TE": "trailers",
        "Cookie": "c=1",
    }
    rest = "/a%2Fb/../c//d?x=%20&thaw=1&x"
    answer = call(shared, port, rest, "PURGE", headers=sent)
    assert answer.status == 200
    assert answer.json["line"] == f"PURGE {rest} HTTP/1.1"
    got = answer.json["headers"]
    for gone in ("x-private", "authorization", "x-forwarded-for", "forwarded", "x-thaw-token"):
        assert gone not in got
    assert "te" not in got
    assert got["x-public"] == ["2"]
    assert got["cookie"] == ["c=1"]
    assert got["host"] == [f"localhost:{port}"]
    assert got["x-forwarded-host"] == ["localhost"]
    assert got["x-forwarded-proto"] == ["http"]
    assert got["x-forwarded-prefix"] == [f"/v1/sandboxes/web/ports/{port}"]
    assert answer.headers["x-kept"] == "yes"
    assert "x-hop" not in answer.headers
    assert "keep-alive" not in answer.headers


def test_answer_keeps_every_cookie(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    connection = shared.api.connection()
    connection.request("GET", f"{BOX}/ports/{guest(serve_report).port}/")
    response = connection.getresponse()
    assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    response.read()
    # The connection to thawd is still good.
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_body(shared: Thawd, guest: Callable[[Any], Guest], size: int, chunked: bool) -> None:
    data = os.urandom(size)
    body: Any = data if not chunked else iter([data[:2], data[2:]] if size else [])
    answer = call(shared, guest(serve_report).port, "/", "POST", body=body)
    assert answer.json["body"] == size
    got = answer.json["headers"]
    assert got.get("transfer-encoding") == (["chunked"] if chunked else None)
    if not chunked:
        assert got["content-length"] == [str(size)]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc and more", b"abc"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", b"no"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
        (b"HTTP/1.1 304 Same\r\nETag: x\r\n\r\n", b""),
    ],
)
def test_framing(shared: Thawd, guest: Callable[[Any], Guest], answer: bytes, body: bytes) -> None:
    got = call(shared, guest(serve_bytes(answer)).port)
    status = answer.split(b"HTTP/1.")[-1].split(b" ")[1]
    assert (got.status, got.body) == (int(status), body)


def test_head(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    answer = call(shared, guest(serve_report).port, "/", "HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 100


def test_large_answer(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    def serve(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n")
        for _ in range(200):
            sock.sendall(b"x" * 100000)

    assert len(call(shared, guest(serve).port).body) == 20000000


def test_answer_flows(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    """What the server sends is there before it sends more; it may take its time."""
    go_on = threading.Event()

    def serve(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        assert go_on.wait(WAIT_S)
        sock.sendall(b"data: 2\n\n")

    connection = shared.api.connection()
    connection.request("GET", f"{BOX}/ports/{guest(serve).port}/")
    response = connection.getresponse()
    assert response.readline() == b"data: 1\n"
    go_on.set()
    assert response.read() == b"\ndata: 2\n\n"
    connection.close()


def test_early_refusal(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    """A server that does not want the body is heard before all of it is sent."""
    answer = b"HTTP/1.1 413 Too large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!"
    made = guest(serve_bytes(answer, lambda sock: sock.shutdown(socket.SHUT_WR) or read_rest(sock)))
    got = call(shared, made.port, "/", "POST", body=b"x" * 3_000_000)
    assert (got.status, got.body) == (413, b"no!")


def test_client_leaves(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    def serve(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nfirst")
        read_rest(sock)

    made = guest(serve)
    connection = shared.api.connection()
    connection.request("GET", f"{BOX}/ports/{made.port}/")
    assert connection.getresponse().read(5) == b"first"
    connection.close()
    assert made.ended.wait(WAIT_S)


# --- servers that misbehave ---------------------------------------------------------------------


def test_nobody_listens(shared: Thawd) -> None:
    port = free_port()
    for method in ("GET", "POST"):
        answer = call(shared, port, "/x", method, check=True)
        assert (answer.status, answer.code) == (502, "port_closed")
        assert answer.json["error"]["details"] == {"port": port}
        assert f"port {port} of sandbox 'web'" in answer.json["error"]["message"]


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "08080x"])
def test_no_port(shared: Thawd, port: str) -> None:
    answer = shared.api.call("GET", f"{BOX}/ports/{port}/", check=False)
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n bad: fold\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Half: ",
    ],
)
def test_garbage(shared: Thawd, guest: Callable[[Any], Guest], answer: bytes) -> None:
    got = call(shared, guest(serve_bytes(answer)).port, check=True)
    assert (got.status, got.code) == (502, "port_closed")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_part_is_never_the_whole(
    shared: Thawd, guest: Callable[[Any], Guest], answer: bytes
) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        call(shared, guest(serve_bytes(answer)).port)


def test_server_that_says_nothing(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    made = guest(lambda sock: read_rest(sock) and None)
    got = call(shared, made.port, check=True)
    assert (got.status, got.code) == (504, "timeout")
    assert made.ended.wait(WAIT_S)  # and its connection is closed


def test_server_that_takes_nothing(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    done = threading.Event()
    made = guest(lambda sock: done.wait(WAIT_S) and None)
    got = call(shared, made.port, "/", "POST", body=b"x" * 30_000_000)
    done.set()
    assert (got.status, got.code) == (504, "timeout")


def test_request_that_can_not_be_passed_on(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    port = guest(serve_report).port
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(shared.socket)
        sock.sendall(f"GET {BOX}/ports/{port}/\xe4 HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 400 ")


# --- WebSocket, raw TCP -------------------------------------------------------------------------

SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: abc\r\n\r\n"
)


def upgrade(thawd: Thawd, target: str, protocol: str, *more: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(WAIT_S)
    sock.connect(thawd.socket)
    lines = ["GET " + target + " HTTP/1.1", "Host: localhost", "Connection: Upgrade"]
    lines += [f"Upgrade: {protocol}", *more, "", ""]
    sock.sendall("\r\n".join(lines).encode())
    return sock


def test_websocket(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    made: Guest

    def serve(sock: socket.socket) -> None:
        made.seen.append(read_head(sock))
        sock.sendall(SWITCH + b"hello")
        while data := sock.recv(65536):
            sock.sendall(data)
        sock.sendall(b"bye")

    made = guest(serve)
    target = f"{BOX}/ports/{made.port}/chat?x=1"
    with upgrade(shared, target, "websocket", "Sec-WebSocket-Key: abc") as sock:
        head = read_head(sock)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert headers_of(head)["sec-websocket-accept"] == ["abc"]
        assert read_exactly(sock, 5) == b"hello"
        data = os.urandom(2_000_000)
        sender = threading.Thread(target=sock.sendall, args=(data,))
        sender.start()
        assert read_exactly(sock, len(data)) == data
        sender.join()
        sock.shutdown(socket.SHUT_WR)
        assert read_rest(sock) == b"bye"
    got = made.seen[0]
    assert got.startswith(b"GET /chat?x=1 HTTP/1.1\r\n")
    assert headers_of(got)["connection"] == ["Upgrade"]
    assert headers_of(got)["sec-websocket-key"] == ["abc"]
    assert made.ended.wait(WAIT_S)


def test_websocket_refused(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    made = guest(serve_bytes(b"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno"))
    with upgrade(shared, f"{BOX}/ports/{made.port}/", "websocket") as sock:
        assert read_head(sock).startswith(b"HTTP/1.1 403 ")
        assert read_exactly(sock, 2) == b"no"


def test_tcp(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    def serve(sock: socket.socket) -> None:
        total = 0
        sock.sendall(b"220 hello\r\n")
        while data := sock.recv(65536):
            total += len(data)
        sock.sendall(str(total).encode())

    made = guest(serve)
    with upgrade(shared, f"{BOX}/ports/{made.port}", "thaw-tcp/1") as sock:
        assert b"Upgrade: thaw-tcp/1" in read_head(sock)
        assert read_exactly(sock, 11) == b"220 hello\r\n"
        sock.sendall(b"x" * 5_000_000)
        sock.shutdown(socket.SHUT_WR)
        assert read_rest(sock) == b"5000000"


def test_tcp_client_is_gone(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    """A server that sends nothing does not keep a connection nobody has."""
    got_end = threading.Event()

    def serve(sock: socket.socket) -> None:
        if not sock.recv(1):
            got_end.set()
        # It stays, and says nothing: thawd ends it.
        read_rest(sock)

    made = guest(serve)
    sock = upgrade(shared, f"{BOX}/ports/{made.port}", "thaw-tcp/1")
    read_head(sock)
    sock.close()
    assert got_end.wait(WAIT_S)
    assert made.ended.wait(WAIT_S)


def test_tcp_refused(shared: Thawd) -> None:
    port = free_port()
    with upgrade(shared, f"{BOX}/ports/{port}", "thaw-tcp/1") as sock:
        head = read_head(sock)
        assert head.startswith(b"HTTP/1.1 502 ")
        length = int(headers_of(head)["content-length"][0])
        assert json.loads(read_exactly(sock, length))["error"]["code"] == "port_closed"
    answer = shared.api.call("GET", f"{BOX}/ports/{port}")
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_no_such_sandbox(shared: Thawd) -> None:
    for target in ("/ports/80/", "/ports/80", "/preview"):
        headers = {"Connection": "Upgrade", "Upgrade": "thaw-tcp/1"}
        answer = shared.api.call("GET", "/v1/sandboxes/nobody" + target, headers=headers)
        assert (answer.status, answer.code) == (404, "not_found")


def test_many_at_once(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    port = guest(serve_report).port
    errors: list[object] = []

    def work() -> None:
        for i in range(10):
            answer = call(shared, port, f"/{i}", "POST", body=b"x" * 100000)
            if answer.status != 200 or answer.json["body"] != 100000:
                errors.append(answer)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# --- waiting ------------------------------------------------------------------------------------


def wait_port(thawd: Thawd, port: int, **body: object) -> Answer:
    return thawd.api.call("POST", f"{BOX}/ports/{port}/wait", body)


def test_wait_open(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    assert wait_port(shared, guest(serve_report).port).json["open"] is True
    answer = wait_port(shared, free_port(), timeout_ms=200)
    assert answer.json["open"] is False
    assert answer.json["waited_ms"] >= 200
    assert wait_port(shared, free_port(), timeout_ms=0).json["open"] is False


def test_wait_until_it_opens(shared: Thawd) -> None:
    port = free_port()
    answers: list[Answer] = []
    waiter = threading.Thread(target=lambda: answers.append(wait_port(shared, port)))
    waiter.start()
    with socket.create_server(("127.0.0.1", port)):
        waiter.join(WAIT_S)
    assert answers[0].json["open"] is True


def test_wait_for_a_status(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    statuses = [b"503 Wait", b"500 Wait", b"200 OK"]

    def serve(sock: socket.socket) -> None:
        made.seen.append(read_head(sock))
        sock.sendall(b"HTTP/1.1 " + statuses.pop(0) + b"\r\nContent-Length: 0\r\n\r\n")

    made = guest(serve)
    answer = wait_port(shared, made.port, http={"path": "/health?x"})
    assert answer.json["open"] is True
    assert len(made.seen) == 3
    assert made.seen[0].startswith(b"GET /health?x HTTP/1.1\r\n")
    made = guest(serve_bytes(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"))
    status = {"status_min": 404, "status_max": 404}
    assert wait_port(shared, made.port, http=status).json["open"] is True
    assert wait_port(shared, made.port, http={}, timeout_ms=100).json["open"] is False


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"timeout": 1}, "unknown_field"),
        ({"http": {"url": "/"}}, "unknown_field"),
        ({"timeout_ms": -1}, "invalid_request"),
        ({"timeout_ms": 600001}, "invalid_request"),
        ({"timeout_ms": "1"}, "invalid_request"),
        ({"http": []}, "invalid_request"),
        ({"http": {"path": "x"}}, "invalid_request"),
        ({"http": {"status_min": 99}}, "invalid_request"),
    ],
)
def test_wait_refused(shared: Thawd, body: dict[str, object], code: str) -> None:
    answer = wait_port(shared, 80, **body)
    assert (answer.status, answer.code) == (400, code)


def test_wait_path_that_can_not_be_sent(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    answer = wait_port(shared, guest(serve_report).port, http={"path": "/a b"})
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- previews -----------------------------------------------------------------------------------


class Preview:
    def __init__(self, thawd: Thawd, port: int) -> None:
        listen = next(line for line in thawd.lines if line.startswith("preview_listen"))
        self.where = ("127.0.0.1", int(listen.rsplit(":", 1)[1]))
        self.info = thawd.api.call("GET", f"{BOX}/preview").json
        self.token = self.info["token"]
        self.host = f"{port}-web.p.example.org"

    def __call__(
        self, target: str = "/", method: str = "GET", host: str | None = None, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection(*self.where, timeout=WAIT_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers={"Host": host or self.host, **sent})
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, fields, response.read())
        connection.close()
        return answer


@pytest.fixture
def preview(shared: Thawd, guest: Callable[[Any], Guest]) -> Preview:
    return Preview(shared, guest(serve_report).port)


def test_preview_info(preview: Preview) -> None:
    assert preview.info["domain"] == "p.example.org"
    where, token = preview.where[1], preview.token
    url = f"http://{{port}}-web.p.example.org:{where}/?thaw_token={token}"
    assert preview.info["url"] == url


def test_preview_needs_its_token(preview: Preview) -> None:
    for headers in (
        {},
        {"X_Thaw_Token": "x"},
        {"X_Thaw_Token": preview.token[:-1]},
        {"X_Thaw_Token": preview.token + "0"},
        {"Cookie": "thaw_token=" + "0" * 32},
        {"Authorization": f"Bearer {preview.token}"},
    ):
        answer = preview(**headers)
        assert (answer.status, answer.code) == (401, "unauthorized"), headers
    assert preview("/?thaw_token=" + "0" * 32).status == 401
    # A wrong header is not made good by a right cookie.
    assert preview(X_Thaw_Token="x", Cookie=f"thaw_token={preview.token}").status == 401


def test_preview_by_header(preview: Preview) -> None:
    answer = preview("/a?b=1", X_Thaw_Token=preview.token, Authorization="Basic app")
    assert answer.json["line"] == "GET /a?b=1 HTTP/1.1"
    got = answer.json["headers"]
    assert got["host"] == [preview.host]
    assert got["x-forwarded-for"] == ["127.0.0.1"]
    assert got["x-forwarded-host"] == [preview.host]
    assert got["authorization"] == ["Basic app"]  # the app's own
    assert "x-thaw-token" not in got
    assert "x-forwarded-prefix" not in got


def test_preview_by_query_and_cookie(preview: Preview) -> None:
    answer = preview(f"/a?b=1&thaw_token={preview.token}&c")
    assert answer.status == 307
    assert answer.headers["location"] == "/a?b=1&c"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"thaw_token={preview.token}; ")
    for attribute in ("HttpOnly", "SameSite=Lax", "Path=/"):
        assert attribute in cookie
    answer = preview("/a?b=1", Cookie=f"x=1; thaw_token={preview.token}; y=2")
    assert answer.status == 200
    assert answer.json["headers"]["cookie"] == ["x=1; y=2"]  # without the token
    # What changes something is not redirected, and the server does not see the token.
    answer = preview(f"/a?thaw_token={preview.token}&c", "POST")
    assert answer.json["line"] == "POST /a?c HTTP/1.1"
    assert preview.token not in answer.body.decode()


@pytest.mark.parametrize("target", ["//evil.example/x", "/\\evil.example", "///\\/evil.example"])
def test_preview_redirects_nowhere_else(preview: Preview, target: str) -> None:
    answer = preview(f"{target}?thaw_token={preview.token}")
    assert answer.status in (307, 400)
    if answer.status == 307:
        joined = urllib.parse.urljoin(f"http://{preview.host}/", answer.headers["location"])
        assert urllib.parse.urlsplit(joined).hostname == preview.host


@pytest.mark.parametrize(
    "host",
    ["p.example.org", "web.p.example.org", "80-web.q.example.org", "80-nobody.p.example.org"],
)
def test_preview_of_nothing(preview: Preview, host: str) -> None:
    answer = preview(host=host, X_Thaw_Token=preview.token)
    assert (answer.status, answer.code) == (404, "not_found")


def test_preview_of_a_closed_port(preview: Preview) -> None:
    answer = preview(host=f"{free_port()}-WEB.p.Example.org:80", X_Thaw_Token=preview.token)
    assert (answer.status, answer.code) == (502, "port_closed")


def test_preview_of_another_sandbox(shared: Thawd, preview: Preview) -> None:
    shared.create("other")
    other = shared.api.call("GET", "/v1/sandboxes/other/preview").json["token"]
    assert other != preview.token
    assert preview(X_Thaw_Token=other).status == 401
    assert shared.api.call("POST", "/v1/sandboxes/other/stop", {}).status == 200
    assert eventually(lambda: shared.state_of("other") == "stopped")
    answer = preview(host=preview.host.replace("web", "other"), X_Thaw_Token=other)
    assert (answer.status, answer.code) == (410, "gone")


def test_preview_websocket(shared: Thawd, guest: Callable[[Any], Guest]) -> None:
    made: Guest

    def serve(sock: socket.socket) -> None:
        made.seen.append(read_head(sock))
        sock.sendall(SWITCH + b"hello")

    made = guest(serve)
    preview = Preview(shared, made.port)
    with socket.create_connection(preview.where, WAIT_S) as sock:
        sock.sendall(
            f"GET /ws?thaw_token={preview.token} HTTP/1.1\r\nHost: {preview.host}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n".encode()
        )
        assert read_head(sock).startswith(b"HTTP/1.1 101 ")
        assert read_rest(sock) == b"hello"
    assert made.seen[0].startswith(b"GET /ws HTTP/1.1\r\n")


def test_no_preview_listener(tmp_path: Path) -> None:
    thawd = daemon.fresh_thawd().start()
    try:
        thawd.create("web")
        info = thawd.api.call("GET", f"{BOX}/preview").json
        assert (info["domain"], info["url"]) == (None, None)
        assert len(info["token"]) == 32
        # thawd ends while a connection is open; the sandbox stays.
        made = Guest(lambda sock: read_rest(sock) and None)
        with upgrade(thawd, f"{BOX}/ports/{made.port}", "thaw-tcp/1") as sock:
            read_head(sock)
            assert thawd.stop() == 0
            assert read_rest(sock) == b""
        made.close()
        thawd.start()
        assert thawd.state_of("web") == "running"
        assert thawd.api.call("GET", f"{BOX}/preview").json["token"] == info["token"]
    finally:
        daemon.remove_thawd(thawd)
