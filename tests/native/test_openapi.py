# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.yaml itself, and that the checker of answers finds what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openapi_check
import pytest

TOP = Path(__file__).resolve().parents[2]
JSON = "application/json"


def nodes(value: Any, at: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401
    if isinstance(value, dict):
        yield at, value
        for key, inner in value.items():
            yield from nodes(inner, f"{at}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from nodes(inner, f"{at}/{index}")


def test_examples_are_what_the_schemas_say() -> None:
    count = 0
    for at, node in nodes(openapi_check.document()):
        schema = node.get("schema")
        if not isinstance(schema, dict) or schema.get("type") == "string":
            continue
        values = [each["value"] for each in node.get("examples", {}).values()]
        values += [node["example"]] if "example" in node else []
        for value in values:
            openapi_check.check_value(schema, value, at)
            count += 1
    assert count > 30


def test_every_object_is_closed() -> None:
    """An open object would let through fields that nobody documented."""
    schemas = openapi_check.document()["components"]["schemas"]
    for at, node in nodes(schemas):
        if node.get("type") == "object" and "/then/" not in at:
            assert "additionalProperties" in node, at


def test_every_schema_is_used() -> None:
    text = json.dumps(openapi_check.document())
    for kind, parts in openapi_check.document()["components"].items():
        for name in parts:
            if kind != "securitySchemes":
                assert f'"#/components/{kind}/{name}"' in text, f"{kind}/{name}"


def test_every_error_code_has_its_status() -> None:
    document = openapi_check.document()
    codes = document["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"]
    assert sorted(codes) == sorted(document["x-errors"])
    for status, common in document["x-common-errors"].items():
        for code in common:
            assert int(status) in document["x-errors"][code], code


def test_paths_are_found() -> None:
    def name(method: str, target: str) -> str | None:
        found = openapi_check.find(method, target)
        return found.id if found else None

    assert name("GET", "/v1/sandboxes?limit=1") == "listSandboxes"
    assert name("HEAD", "/v1/sandboxes/a/files?path=/x") == "readFile"
    assert name("GET", "/v1/sandboxes/a/ports/80") == "connectPort"
    assert name("GET", "/v1/sandboxes/a/ports/80/x/y?z") == "proxyGet"
    assert name("POST", "/v1/sandboxes/a/ports/80/wait") == "waitPort"
    assert name("TRACE", "/v1/sandboxes") is None
    assert name("GET", "/v1/nothing") is None


OK = json.dumps({"ok": True}).encode()
EXIT = {"exit_code": 0, "signal": None, "timed_out": False, "oom_killed": False, "drained": True}


def error(code: str, **details: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": "m", "details": details}}).encode()


@pytest.mark.parametrize(
    ("method", "target", "status", "kind", "body"),
    [
        ("GET", "/healthz", 200, JSON, OK),
        ("HEAD", "/healthz", 200, JSON, b""),
        ("GET", "/v1/nothing", 404, JSON, error("not_found")),
        ("POST", "/healthz", 405, JSON, error("method_not_allowed")),
        ("DELETE", "/v1/sandboxes/a", 204, None, b""),
        ("GET", "/v1/sandboxes/a", 401, JSON, error("unauthorized")),
        (
            "POST", "/v1/sandboxes/a/exec", 422, JSON,
            error("spawn_failed", stage="exec", errno="ENOENT"),
        ),
        ("GET", "/v1/sandboxes/a/ports/80/x", 418, "text/html", b"<p>"),
        ("GET", "/v1/sandboxes/a/files?path=x", 200, "application/octet-stream", None),
    ],
)  # fmt: skip
def test_good_answers_pass(
    method: str, target: str, status: int, kind: str | None, body: bytes | None
) -> None:
    openapi_check.check_response(method, target, status, kind, body)


@pytest.mark.parametrize(
    ("method", "target", "status", "kind", "body"),
    [
        ("GET", "/healthz", 200, JSON, b'{"ok":true,"more":1}'),  # a field too many
        ("GET", "/healthz", 200, JSON, b"{}"),  # a field too few
        ("GET", "/healthz", 200, JSON, b"{"),
        ("GET", "/healthz", 200, "text/plain", OK),
        ("GET", "/healthz", 202, JSON, OK),
        ("GET", "/v1/nothing", 200, JSON, b"{}"),  # a call that is not there
        ("DELETE", "/v1/sandboxes/a", 204, None, b"gone"),
        ("GET", "/v1/sandboxes/a", 404, JSON, error("wrong_state")),  # code of another status
        ("GET", "/v1/sandboxes", 404, JSON, error("not_found")),  # not listed there
        ("POST", "/v1/sandboxes/a/exec", 422, JSON, error("spawn_failed")),  # without details
        ("GET", "/v1/sandboxes/a/files?path=x", 404, JSON, error("file_error", errno="ENOENT")),
        ("GET", "/v1/sandboxes/a", 400, JSON, error("unknown_field")),
    ],
)
def test_bad_answers_are_found(
    method: str, target: str, status: int, kind: str | None, body: bytes
) -> None:
    with pytest.raises(openapi_check.ApiMismatch):
        openapi_check.check_response(method, target, status, kind, body)


def test_events_are_checked() -> None:
    target = "/v1/sandboxes/a/exec"
    openapi_check.check_event("POST", target, 200, "exit", json.dumps(EXIT))
    for event, data in (("exit", {}), ("exit", {**EXIT, "more": 1}), ("nothing", EXIT)):
        with pytest.raises(openapi_check.ApiMismatch):
            openapi_check.check_event("POST", target, 200, event, json.dumps(data))


def test_websocket_messages_are_checked() -> None:
    openapi_check.check_ws_text(json.dumps({"type": "exit", **EXIT}))
    with pytest.raises(openapi_check.ApiMismatch):
        openapi_check.check_ws_text(json.dumps({"type": "exit"}))
