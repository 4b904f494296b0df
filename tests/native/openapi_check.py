# SPDX-License-Identifier: Apache-2.0
"""Hold answers of thawd to docs/openapi.yaml.

check_response() takes one answer; the test client (api_client.py) and, through watch_client(), the
Python client hand in every one. A call that is not in the file, a status that its call does not
list, a media type, a field too many or too few: each is an ApiMismatch, which fails the test.

What was seen is kept (seen()), so that test_zz_openapi.py can tell what no test has covered.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

FILE = Path(__file__).resolve().parents[2] / "docs/openapi.yaml"
METHODS = ("get", "put", "post", "delete", "patch", "options", "head")
EVENTS = "text/event-stream"


class ApiMismatch(AssertionError):
    """An answer that docs/openapi.yaml does not allow."""


@dataclass(frozen=True)
class Operation:
    """One method of one path of the file."""

    id: str
    method: str
    template: str
    node: dict[str, Any]
    proxy: bool


@functools.cache
def document() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def resolve(node: dict[str, Any]) -> dict[str, Any]:
    """NODE, or what it refers to."""
    while "$ref" in node:
        target: Any = document()
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def _pattern(template: str) -> re.Pattern[str]:
    parts = []
    for part in re.split(r"(\{[a-z]+\})", template):
        if part == "{rest}":
            parts.append(".*")
        elif part.startswith("{"):
            parts.append("[^/]+")
        else:
            parts.append(re.escape(part))
    return re.compile("".join(parts))


@functools.cache
def operations() -> list[Operation]:
    found = []
    for template, item in document()["paths"].items():
        proxy = item.get("x-proxy", False)
        for method in METHODS:
            if method in item:
                node = item[method]
                found.append(Operation(node["operationId"], method, template, node, proxy))
    return found


@functools.cache
def _routes() -> list[tuple[str, re.Pattern[str]]]:
    """Paths, the exact ones before those that take anything."""
    templates = sorted(document()["paths"], key=lambda t: ("{rest}" in t, t.count("{"), t))
    return [(template, _pattern(template)) for template in templates]


def find(method: str, target: str) -> Operation | None:
    """The call that METHOD and TARGET (path, with or without a query) mean; None: not in the file.

    HEAD is GET. A method that an exact path does not have may belong to a proxied one.
    """
    path = urllib.parse.urlsplit(target).path
    wanted = "get" if method.upper() == "HEAD" else method.lower()
    for template, pattern in _routes():
        if pattern.fullmatch(path):
            for operation in operations():
                if operation.template == template and operation.method == wanted:
                    return operation
    return None


def documented() -> set[tuple[str, str]]:
    """Every (call, status) that the file lists by name."""
    return {
        (operation.id, status)
        for operation in operations()
        for status in operation.node["responses"]
        if status != "default"
    }


_seen: set[tuple[str, str]] = set()
_lock = threading.Lock()


def seen() -> set[tuple[str, str]]:
    with _lock:
        return set(_seen)


@functools.cache
def _validator(schema_text: str) -> Any:  # noqa: ANN401
    schema = json.loads(schema_text)
    root = {"allOf": [schema], "components": document()["components"]}
    return jsonschema.Draft202012Validator(root)


def check_value(schema: dict[str, Any], value: object, where: str) -> None:
    """VALUE must be what SCHEMA (a part of the file) says."""
    errors = list(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value))
    if errors:
        best = jsonschema.exceptions.best_match(errors)
        at = "/".join(str(part) for part in best.absolute_path) or "(top)"
        raise ApiMismatch(f"{where}: at {at}: {best.message}\nin {json.dumps(value)[:2000]}")


def _json(body: bytes, where: str) -> object:
    try:
        return json.loads(body.decode("utf-8"))
    except ValueError as error:
        raise ApiMismatch(f"{where}: body is not JSON ({error}): {body[:500]!r}") from error


def _check_code(status: int, value: object, where: str) -> str:
    """An error's body: its code must belong to the status. Returns the code."""
    check_value({"$ref": "#/components/schemas/Error"}, value, where)
    assert isinstance(value, dict)
    code = value["error"]["code"]
    if status not in document()["x-errors"][code]:
        raise ApiMismatch(f"{where}: code {code} does not go with the status")
    return code


def _check_unlisted(
    operation: Operation | None, status: int, body: bytes | None, where: str
) -> None:
    """An answer by a status that its call does not list: only what every call can answer."""
    common = dict(document()["x-common-errors"])
    if operation is None:
        common["404"] = ["not_found"]
    if str(status) not in common:
        raise ApiMismatch(f"{where}: this status is not documented")
    if body is None:
        return
    code = _check_code(status, _json(body, where), where)
    if code not in common[str(status)]:
        raise ApiMismatch(f"{where}: code {code} is not documented for it")


def check_response(
    method: str,
    target: str,
    status: int,
    content_type: str | None,
    body: bytes | None,
    headers: dict[str, str] | None = None,
) -> Operation | None:
    """One answer. BODY: all of it; None: not looked at (HEAD, a stream that the test reads).

    Returns the call, None for one that is not in the file and was answered with 404 or 405.
    Raises ApiMismatch.
    """
    where = f"{method} {target} -> {status}"
    operation = find(method, target)
    if operation is None:
        # Nobody may get more from what is not documented than that it is not there.
        _check_unlisted(None, status, None if method == "HEAD" else body, where)
        return None
    responses = operation.node["responses"]
    if str(status) in responses:
        with _lock:
            _seen.add((operation.id, str(status)))
    elif operation.proxy:
        return operation
    else:
        _check_unlisted(operation, status, None if method == "HEAD" else body, where)
        return operation
    if operation.proxy and content_type != "application/json":
        return operation
    response = resolve(responses[str(status)])
    media = (content_type or "").partition(";")[0].strip().lower()
    content = response.get("content", {})
    if not content:
        if body:
            raise ApiMismatch(f"{where}: a body, none is documented: {body[:200]!r}")
        return operation
    if media not in content:
        raise ApiMismatch(f"{where}: {media or 'no type'}, documented: {', '.join(content)}")
    for name, header in response.get("headers", {}).items():
        if headers is not None and name.lower() in headers:
            check_value({"type": "string", **_text(header)}, headers[name.lower()], where)
    if body is None or method == "HEAD" or media != "application/json":
        return operation
    value = _json(body, where)
    if status >= 400:
        _check_code(status, value, where)
    check_value(content[media]["schema"], value, where)
    return operation


def _text(header: dict[str, Any]) -> dict[str, Any]:
    """What a header's schema says about its text."""
    schema = resolve(resolve(header)["schema"])
    return {"pattern": "^[0-9]+$"} if schema.get("type") == "integer" else {**schema}


def check_event(method: str, target: str, status: int, event: str, data: str) -> None:
    """One server-sent event of the answer to METHOD TARGET."""
    where = f"{method} {target} -> event {event}"
    operation = find(method, target)
    if operation is None:
        raise ApiMismatch(f"{where}: the call is not in the file")
    content = resolve(operation.node["responses"][str(status)]).get("content", {})
    events = content.get(EVENTS, {}).get("x-events")
    if events is None:
        raise ApiMismatch(f"{where}: the call has no events")
    if event not in events:
        raise ApiMismatch(f"{where}: documented are {', '.join(events)}")
    check_value(events[event], _json(data.encode(), where), where)


def check_ws_text(text: str) -> None:
    """One text message of the server over a WebSocket of execs."""
    check_value(
        {"$ref": "#/components/schemas/WsServerMessage"}, _json(text.encode(), text), "WebSocket"
    )


@contextlib.contextmanager
def watch_client() -> Iterator[None]:
    """Meanwhile every answer that the Python client (package thaw) gets is checked."""
    from thaw import _observe

    _observe.set_observer(check_response, check_event, check_ws_text)
    try:
        yield
    finally:
        _observe.set_observer(None, None, None)
