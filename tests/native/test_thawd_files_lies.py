# SPDX-License-Identifier: Apache-2.0
"""thawd's files API before a guest that lies (lying_shim.py): a clear answer, or one that is cut;
never a body that looks whole, and thawd goes on."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from api_client import Answer
from daemon import TOP, Thawd, eventually, fresh_thawd, needs_thawd, remove_thawd

pytestmark = needs_thawd

SHIM = TOP / "tests/native/lying_shim.py"
FILES = "/v1/sandboxes/a/files"


@pytest.fixture(scope="module")
def thawd() -> Iterator[Thawd]:
    made = fresh_thawd(THAW_FAKE_SHIM=str(SHIM))
    try:
        made.start()
        made.create("a")
        yield made
    finally:
        remove_thawd(made)


def read(thawd: Thawd, name: str) -> Answer:
    return thawd.api.call("GET", f"{FILES}?path=/lie/{name}")


@pytest.mark.parametrize("name", ["truth", "data-first"])
def test_the_truth(thawd: Thawd, name: str) -> None:
    answer = read(thawd, name)
    assert (answer.status, answer.body) == (200, b"0123456789")


@pytest.mark.parametrize(
    "name",
    [
        "garbage", "silence", "only-the-end", "end-before-start", "output-before-start", "twice",
        "long-frame", "long-message", "version", "half-a-message", "no-such-errno", "nul", "mode",
        "outside", "killed", "credit", "flood-before",
    ],
)  # fmt: skip
def test_lies_before_the_answer(thawd: Thawd, name: str) -> None:
    answer = read(thawd, name)
    assert (answer.status, answer.code) == (502, "guest_lost")
    if name == "killed":
        assert "memory" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "name", ["behind-the-last", "status", "more", "fewer", "miscounted", "cut"]
)
def test_lies_within_the_answer(thawd: Thawd, name: str) -> None:
    """What was announced has come, or the connection is cut."""
    connection = thawd.api.connection()
    connection.request("GET", f"{FILES}?path=/lie/{name}")
    response = connection.getresponse()
    assert response.status == 200
    try:
        body = response.read()
    except http.client.IncompleteRead as error:
        body = error.partial
        assert len(body) < 10
    assert body == b"0123456789"[: len(body)] or name == "more"
    assert len(body) <= 10
    if name in ("fewer", "cut"):
        assert len(body) < 10
    connection.close()


def test_templates_without_it(thawd: Thawd) -> None:
    answer = read(thawd, "old")
    assert (answer.status, answer.code) == (400, "unsupported")
    answer = read(thawd, "busy")
    assert (answer.status, answer.code) == (429, "too_many")


def test_texts_are_made_harmless(thawd: Thawd) -> None:
    answer = read(thawd, "error-text")
    assert (answer.status, answer.code) == (403, "file_error")
    message = answer.json["error"]["message"]
    assert message.isprintable()
    assert "path_b64" in answer.json["error"]["details"]


@pytest.mark.parametrize("name", ["garbage", "silence", "credit", "truth", "old", "killed"])
def test_lies_to_a_write(thawd: Thawd, name: str) -> None:
    answer = thawd.api.call("PUT", f"{FILES}?path=/lie/{name}", body=bytes(100_000))
    assert answer.code in ("guest_lost", "unsupported") if name != "truth" else answer.status == 200


@pytest.mark.parametrize("what", ["stat", "list", "tar", "watch"])
@pytest.mark.parametrize("name", ["garbage", "silence", "only-the-end", "killed", "nul", "credit"])
def test_lies_to_others(thawd: Thawd, what: str, name: str) -> None:
    answer = thawd.api.call("GET", f"{FILES}/{what}?path=/lie/{name}")
    assert (answer.status, answer.code) == (502, "guest_lost")


def test_a_list_without_an_end(thawd: Thawd) -> None:
    with thawd.api.stream("GET", f"{FILES}/list?path=/lie/endless-list") as stream:
        assert len(stream.read(3_000_000)) == 3_000_000
    assert thawd.api.call("GET", "/healthz").status == 200


def test_a_client_that_leaves_a_silent_guest(thawd: Thawd) -> None:
    connection = thawd.api.connection()
    connection.request("GET", f"{FILES}?path=/lie/waits")
    assert eventually(lambda: list(thawd.state.rglob("*.came")))
    connection.close()
    assert eventually(lambda: list(thawd.state.rglob("*.left")))
