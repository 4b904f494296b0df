# SPDX-License-Identifier: Apache-2.0
"""Every call of docs/openapi.yaml that is of a sandbox, for one that does not exist and for one
that does not run: the requests are the examples of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import openapi_check
import pytest
from daemon import Thawd, fresh_thawd, needs_thawd, remove_thawd
from openapi_check import Operation

pytestmark = needs_thawd

UNKNOWN = "f" * 32
OF_SANDBOX = [op for op in openapi_check.operations() if "/sandboxes/{name}" in op.template]
WITH_404 = [op for op in OF_SANDBOX if "404" in op.node["responses"]]
# Calls that need a machine; an exec is looked for first by those that are of one.
WITH_409 = [
    op
    for op in OF_SANDBOX
    if "409" in op.node["responses"] and "{id}" not in op.template and op.id not in (
        # What they do with a stopped one is no error.
        "getOrCreateSandbox", "deleteSandbox", "startSandbox", "stopSandbox", "destroySandbox",
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def daemon() -> Iterator[Thawd]:
    made = fresh_thawd()
    try:
        made.start()
        made.create("stopped", template="debian", start=False)
        made.create("running", template="debian")
        yield made
    finally:
        remove_thawd(made)


def body_of(op: Operation) -> tuple[bytes | None, str]:
    """The first example of its request, and the type."""
    content = openapi_check.resolve(op.node.get("requestBody", {})).get("content", {})
    for kind, node in content.items():
        if "example" in node:
            return json.dumps(node["example"]).encode(), kind
        if "examples" in node:
            return json.dumps(next(iter(node["examples"].values()))["value"]).encode(), kind
        return b"", kind
    return None, ""


def call(daemon: Thawd, op: Operation, sandbox: str, ident: str = UNKNOWN) -> tuple[int, str]:
    """(status, code)."""
    target = op.template.replace("{name}", sandbox).replace("{id}", ident)
    target = target.replace("{port}", "1").replace("{rest}", "x")
    item = openapi_check.document()["paths"][op.template]
    parameters = [*item.get("parameters", []), *op.node.get("parameters", [])]
    resolved = [openapi_check.resolve(each) for each in parameters]
    query = [f"{p['name']}={quote('/tmp')}" for p in resolved if p["name"] == "path"]
    target += "?" + "&".join(query) if query else ""
    headers = {}
    if any(p["name"] == "Upgrade" and p.get("required") for p in resolved):
        protocol = {"execWebSocket": "websocket", "connectPort": "thaw-tcp/1"}
        headers = {"Connection": "Upgrade", "Upgrade": protocol.get(op.id, "thaw-exec/1")}
        headers |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    body, kind = body_of(op)
    if body is not None and kind:
        headers["Content-Type"] = kind
    answer = daemon.api.call(op.method.upper(), target, body=body, headers=headers)
    return answer.status, answer.code if answer.body else ""


def name_of(op: Operation) -> str:
    return op.id


@pytest.mark.parametrize("op", WITH_404, ids=name_of)
def test_a_sandbox_that_is_not_there(daemon: Thawd, op: Operation) -> None:
    if op.id == "getOrCreateSandbox":
        pytest.skip("it makes one")
    assert call(daemon, op, "nobody") == (404, "not_found")


@pytest.mark.parametrize("op", [op for op in WITH_404 if "{id}" in op.template], ids=name_of)
def test_an_exec_that_is_not_there(daemon: Thawd, op: Operation) -> None:
    assert call(daemon, op, "running") == (404, "not_found")


@pytest.mark.parametrize("op", WITH_409, ids=name_of)
def test_a_sandbox_that_does_not_run(daemon: Thawd, op: Operation) -> None:
    assert call(daemon, op, "stopped") == (409, "wrong_state")


def test_a_sandbox_that_runs(daemon: Thawd) -> None:
    for verb in ("start", "resume", "signal"):
        body = {"signal": "TERM"} if verb == "signal" else {}
        answer = daemon.api.call("POST", f"/v1/sandboxes/running/{verb}", body)
        assert (answer.status, answer.code) == (409, "wrong_state")


def test_ended_and_terminal_less_execs(daemon: Thawd) -> None:
    path = "/v1/sandboxes/running/exec"
    plain = daemon.api.call("POST", path, {"argv": ["sleep", "600"], "detach": True}).json["id"]
    assert daemon.api.call("PUT", f"{path}s/{plain}/stdin", body=b"x").code == "wrong_state"
    size = {"cols": 100, "rows": 30}
    assert daemon.api.call("POST", f"{path}s/{plain}/resize", size).code == "wrong_state"
    request = {"argv": ["sleep", "600"], "detach": True, "pty": True}
    term = daemon.api.call("POST", path, request).json["id"]
    assert daemon.api.call("POST", f"{path}s/{term}/resize", size).status == 204
    for ident in (plain, term):
        assert daemon.api.call("POST", f"{path}s/{ident}/kill", {}).status == 204
        assert daemon.api.call("GET", f"{path}s/{ident}/wait").json["signal"] == "SIGKILL"
        answer = daemon.api.call("POST", f"{path}s/{ident}/signal", {"signal": 15})
        assert answer.code == "wrong_state"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v1/snapshots/none", None),
        ("DELETE", "/v1/snapshots/none", None),
        ("GET", "/v1/templates/none", None),
        ("DELETE", "/v1/templates/none", None),
        ("PUT", "/v1/pools/none", {"size": 1}),
        ("POST", "/v1/templates", {"name": "t", "recipe": "none"}),
        ("PUT", "/v1/sandboxes/a", {"template": "none"}),
        ("PUT", "/v1/sandboxes/a", {"snapshot": "none"}),
        ("POST", "/v1/sandboxes", {"template": "none"}),
    ],
)
def test_what_is_not_there(daemon: Thawd, method: str, target: str, body: object) -> None:
    answer = daemon.api.call(method, target, body)
    assert (answer.status, answer.code) == (404, "not_found")
    assert "none" in answer.json["error"]["message"]


def test_the_file_is_served(daemon: Thawd) -> None:
    """But for the version, which is thawd's own."""
    served = daemon.api.call("GET", "/openapi.json").json
    assert served["info"].pop("version") == daemon.api.call("GET", "/version").json["version"]
    wanted = {**openapi_check.document()["info"]}
    del wanted["version"]
    assert served == {**openapi_check.document(), "info": wanted}


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
def test_a_port_that_nobody_listens_on(daemon: Thawd, method: str) -> None:
    answer = daemon.api.call(method, "/v1/sandboxes/running/ports/1/x")
    assert (answer.status, answer.code) == (502, "port_closed")


NOBODY = "65534:65534"


@pytest.mark.parametrize(
    ("method", "operation", "body"),
    [
        ("GET", "", None),
        ("PUT", "", None),
        ("GET", "/stat", None),
        ("GET", "/list", None),
        ("GET", "/tar", None),
        ("PUT", "/tar", None),
        ("GET", "/watch", None),
        ("POST", "/mkdir", {"path": "{}/f"}),
        ("POST", "/rename", {"from": "{}/f", "to": "{}/g"}),
        ("POST", "/remove", {"path": "{}/f"}),
        ("POST", "/symlink", {"target": "x", "path": "{}/l"}),
        ("POST", "/chmod", {"path": "{}/f", "mode": "0777"}),
        ("POST", "/chown", {"path": "{}/f", "uid": 0, "gid": 0}),
    ],
)
def test_files_of_others(
    daemon: Thawd, tmp_path: Path, method: str, operation: str, body: dict[str, object] | None
) -> None:
    """A folder that only root may look into."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    target = f"/v1/sandboxes/running/files{operation}"
    if body is None:
        target += f"?user={NOBODY}&path={folder}/d"
        answer = daemon.api.call(method, target, body=b"" if method == "PUT" else None)
    else:
        sent = {k: v.format(folder) if isinstance(v, str) else v for k, v in body.items()}
        answer = daemon.api.call(method, target, {**sent, "user": NOBODY})
    assert (answer.status, answer.code) == (403, "file_error")
    assert answer.json["error"]["details"]["errno"] == "EACCES"


def test_templates_are_built_and_removed(daemon: Thawd) -> None:
    answer = daemon.api.call("POST", "/v1/templates", {"name": "debian", "recipe": "debian"})
    assert (answer.status, answer.code) == (409, "conflict")
    request = {"name": "errors-t", "recipe": "debian"}
    with daemon.api.stream("POST", "/v1/templates", request) as stream:
        events = list(stream.events())
    assert events[-1].name == "done", events
    assert events[-1].data["template"]["name"] == "errors-t"
    assert daemon.api.call("DELETE", "/v1/templates/errors-t").status == 204
