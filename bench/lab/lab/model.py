# SPDX-License-Identifier: Apache-2.0
"""What a report of the lab holds, and the check of it: build/lab/report.json, schema 1.

Milliseconds, KiB, bytes. A clock that an arm can't have is absent from its samples, never 0; an arm
that did not run has no samples and says why in `not_run`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 1

KINDS = ("thaw", "peer", "floor")
CACHES = (None, "hot", "cold")
POOLS = (None, "hit", "miss", "none")
UNITS = ("ratio", "ms", "KiB", "clones/s", "count")
BETTER = ("lower", "higher")
# What a sample may hold; `seq` is its place in the order of the whole run.
CLOCKS = ("c1", "c2", "c3", "c4", "c5", "wall", "teardown")
COUNTS = ("cpu_ms", "minor", "major", "bytes_read")
SAMPLE_KEYS = frozenset(("seq", *CLOCKS, *COUNTS))
EXPERIMENTS = ("burst", "patterns", "sweep", "memory", "io", "replay", "setup")
TARGETS = (
    *("hot-pooled", "hot-unpooled", "v-bwrap", "v-qemu", "v-coldboot", "cold-bytes"),
    *("cold-bandwidth", "burst100", "rate64", "clone-private", "vmm-private", "c1-native"),
    *("ws-best-hot", "cold-best"),
)

Sample = dict[str, float]


class ModelError(Exception):
    """A file that is no report; the message names the file and what is wrong."""


@dataclass
class ArmRow:
    """One way of starting, and what it took each time."""

    id: str
    kind: str  # thaw: a start by thaw; peer: by something else; floor: what no start can beat
    variant: str  # restore, cold-boot, warm-exec; a peer's own word
    peer: str | None = None
    template: str | None = None
    strategy: str | None = None
    strategy_done: str | None = None  # as the result named it: "ws+no-pre-fault" (docs/restore.md)
    cache: str | None = None
    pool: str | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    options: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=lambda: ["/bin/true"])
    n: int = 0  # samples asked for; len(samples) + failed came of it
    warmups: int = 0
    failed: int = 0
    not_run: str | None = None
    errors: list[str] = field(default_factory=list)  # of failed samples: the first few
    samples: list[Sample] = field(default_factory=list)

    def values(self, key: str) -> list[float]:
        """The samples of one clock or count, where it was had."""
        return [sample[key] for sample in self.samples if key in sample]


@dataclass
class Target:
    """Is it fast enough? ok None: could not be told."""

    id: str
    what: str
    value: float | None
    limit: float
    unit: str
    better: str
    ok: bool | None
    n: int
    note: str = ""


@dataclass
class Report:
    plan: str
    seed: int
    date: str
    environment: dict[str, object] = field(default_factory=dict)
    arms: list[ArmRow] = field(default_factory=list)
    experiments: dict[str, dict[str, object]] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    schema: int = SCHEMA

    def find(self, **wanted: object) -> list[ArmRow]:
        """The arms whose fields have these values, those that did not run included."""
        return [
            arm
            for arm in self.arms
            if all(getattr(arm, name) == value for name, value in wanted.items())
        ]

    def arm(self, arm_id: str) -> ArmRow | None:
        return next((arm for arm in self.arms if arm.id == arm_id), None)


# --- the check -----------------------------------------------------------------------------------

_ROW_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "kind", "variant"), (str,)),
    **dict.fromkeys(
        ("peer", "template", "strategy", "strategy_done", "cache", "pool", "not_run"),
        (str, type(None)),
    ),
    **dict.fromkeys(("vcpus", "memory_mib"), (int, type(None))),
    **dict.fromkeys(("n", "warmups", "failed"), (int,)),
    **dict.fromkeys(("options", "command", "errors", "samples"), (list,)),
}
_TARGET_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "what", "unit", "better", "note"), (str,)),
    "value": (int, float, type(None)),
    "limit": (int, float),
    "ok": (bool, type(None)),
    "n": (int,),
}
_REPORT_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("schema", "seed"), (int,)),
    **dict.fromkeys(("plan", "date"), (str,)),
    **dict.fromkeys(("environment", "experiments"), (dict,)),
    **dict.fromkeys(("arms", "targets"), (list,)),
}


def _check_fields(where: str, data: object, types: dict[str, tuple[type, ...]]) -> list[str]:
    """What is wrong with the names and types of an object's fields."""
    if not isinstance(data, dict):
        return [f"{where}: not an object"]
    wrong = [f"{where}: no field {name}" for name in types if name not in data]
    for name, value in data.items():
        if name not in types:
            wrong.append(f"{where}: unknown field {name}")
        elif not isinstance(value, types[name]) or (
            isinstance(value, bool) and bool not in types[name]
        ):
            wrong.append(f"{where}: {name} is {_shown(value)}")
    return wrong


def _shown(value: object) -> str:
    """@value for a message, short whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a list of too many lists
        return f"{type(value).__name__} too big to show"
    return text if len(text) <= 80 else f"{text[:80]}..."


def _finite(value: object) -> bool:
    """Is @value a number that a float can hold?"""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _check_sample(where: str, sample: object) -> list[str]:
    if not isinstance(sample, dict):
        return [f"{where}: not an object"]
    wrong = [f"{where}: unknown key {key}" for key in sample if key not in SAMPLE_KEYS]
    if "seq" not in sample:
        wrong.append(f"{where}: no seq")
    for key, value in sample.items():
        if not _finite(value) or value < 0:
            wrong.append(f"{where}: {key} is {_shown(value)}")
    return wrong


def _check_row(where: str, row: object) -> list[str]:
    wrong = _check_fields(where, row, _ROW_TYPES)
    if wrong:
        return wrong
    assert isinstance(row, dict)
    where = f"{where} ({row['id']})"
    for name, allowed in (("kind", KINDS), ("cache", CACHES), ("pool", POOLS)):
        if row[name] not in allowed:
            wrong.append(f"{where}: {name} is {row[name]!r}, not one of {allowed}")
    for name in ("options", "command", "errors"):
        if not all(isinstance(word, str) for word in row[name]):
            wrong.append(f"{where}: {name} holds something that is no string")
    if (row["kind"] == "peer") != (row["peer"] is not None):
        wrong.append(f"{where}: kind {row['kind']} and peer {row['peer']!r} contradict each other")
    if row["not_run"] is not None and row["samples"]:
        wrong.append(f"{where}: has samples and not_run")
    if row["not_run"] is None and len(row["samples"]) + row["failed"] != row["n"]:
        wrong.append(f"{where}: n {row['n']} is not samples {len(row['samples'])} + failed")
    for number, sample in enumerate(row["samples"]):
        wrong += _check_sample(f"{where}: sample {number}", sample)
    return wrong


def _check_target(where: str, target: object) -> list[str]:
    wrong = _check_fields(where, target, _TARGET_TYPES)
    if wrong:
        return wrong
    assert isinstance(target, dict)
    where = f"{where} ({target['id']})"
    for name, allowed in (("id", TARGETS), ("unit", UNITS), ("better", BETTER)):
        if target[name] not in allowed:
            wrong.append(f"{where}: {name} is {target[name]!r}")
    value, limit = target["value"], target["limit"]
    for name in ("value", "limit"):
        if target[name] is not None and not _finite(target[name]):
            wrong.append(f"{where}: {name} is {_shown(target[name])}")
    if (value is None) != (target["ok"] is None):
        wrong.append(f"{where}: value {value} and ok {target['ok']} contradict each other")
    elif value is not None and not wrong:
        met = value <= limit if target["better"] == "lower" else value >= limit
        if met != target["ok"]:
            wrong.append(f"{where}: ok is {target['ok']}, but {value} against {limit}")
    return wrong


def check(data: object) -> list[str]:
    """What is wrong with a report as read from JSON; empty if nothing is."""
    wrong = _check_fields("report", data, _REPORT_TYPES)
    if wrong:
        return wrong
    assert isinstance(data, dict)
    if data["schema"] != SCHEMA:
        return [f"report: schema {_shown(data['schema'])}, this lab knows {SCHEMA}"]
    for number, row in enumerate(data["arms"]):
        wrong += _check_row(f"arm {number}", row)
    for number, target in enumerate(data["targets"]):
        wrong += _check_target(f"target {number}", target)
    for name, value in data["experiments"].items():
        if name not in EXPERIMENTS:
            wrong.append(f"experiments: unknown one {name}")
        elif not isinstance(value, dict):
            wrong.append(f"experiments: {name}: not an object")
    for kind, items in (("arm", data["arms"]), ("target", data["targets"])):
        ids = [item["id"] for item in items if isinstance(item, dict) and "id" in item]
        counts = Counter(one for one in ids if isinstance(one, str))
        wrong += [f"{kind} {one}: twice" for one in sorted(counts) if counts[one] > 1]
    return wrong


# --- load and save -------------------------------------------------------------------------------


def from_json(data: object) -> Report:
    """The report in @data; ModelError says all that is wrong with it."""
    wrong = check(data)
    if wrong:
        raise ModelError("; ".join(wrong[:10]))
    assert isinstance(data, dict)
    rest = {name: value for name, value in data.items() if name not in ("arms", "targets")}
    return Report(
        **rest,
        arms=[ArmRow(**row) for row in data["arms"]],
        targets=[Target(**target) for target in data["targets"]],
    )


def to_json(report: Report) -> dict[str, object]:
    """@report as JSON holds it; ModelError if it is none."""
    data = dataclasses.asdict(report)
    wrong = check(data)
    if wrong:
        raise ModelError("; ".join(wrong[:10]))
    return {"schema": data.pop("schema"), **data}


def load(path: Path) -> Report:
    try:
        return from_json(json.loads(path.read_text()))
    except OSError as error:  # its message names the path
        raise ModelError(str(error)) from error
    except RecursionError:
        raise ModelError(f"{path}: nested too deep for a report") from None
    except (ValueError, ModelError) as error:
        raise ModelError(f"{path}: {error}") from error


def save(report: Report, path: Path) -> None:
    """Write @report to @path, which then holds either the old content or all of the new one."""
    text = json.dumps(to_json(report), indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
