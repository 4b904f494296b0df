# SPDX-License-Identifier: Apache-2.0
"""Which (call, status) pairs of docs/openapi.yaml no test has seen. Last by its name: it needs the
other tests of the API in the same run.

openapi_unseen.txt lists those that need not be seen here, each with the reason.
"""

from __future__ import annotations

from pathlib import Path

import openapi_check
import pytest

LIST = Path(__file__).with_name("openapi_unseen.txt")
# Without these a run says nothing about what is seen.
NEEDED = {"test_client.py", "test_openapi.py"}


def listed() -> dict[tuple[str, str], str]:
    found = {}
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            call, status, reason = line.split(None, 2)
            found[call, status] = reason
    return found


def test_the_list_is_of_what_is_documented() -> None:
    assert set(listed()) <= openapi_check.documented()


def test_every_documented_answer_is_seen(request: pytest.FixtureRequest) -> None:
    files = {item.path.name for item in request.session.items}
    api = {path.name for path in LIST.parent.glob("test_*.py") if "api_client" in path.read_text()}
    missing = (api | NEEDED) - files
    if missing:
        pytest.skip(f"only together with {', '.join(sorted(missing))}")
    unseen = openapi_check.documented() - openapi_check.seen() - set(listed())
    assert not unseen, "no test has seen:\n" + "\n".join(
        f"  {call} {status}" for call, status in sorted(unseen)
    )
