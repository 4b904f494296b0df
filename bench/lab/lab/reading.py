# SPDX-License-Identifier: Apache-2.0
"""Reading a report for people: experiments checked field by field, arms named, figures printed.

model.py checks arms, samples and targets; what an experiment holds is checked here, where it is
read. A field that is missing is None (the report says "no data"); one that is not what it must be
is a ModelError that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lab.model import ArmRow, ModelError, Report

Made = TypeVar("Made")

STRATEGIES = ("ws", "mmap", "uring", "copy", "memfd", "uffd", "pack")
POOLS = ("hit", "miss", "none", None)
CACHES = ("hot", "cold", None)
CLOCKS = ("c1", "c2", "c3", "c4", "c5")


class Node:
    """A value in a report's JSON, which knows where it is."""

    def __init__(self, value: object, where: str) -> None:
        self.value = value
        self.where = where

    def wrong(self, what: str) -> ModelError:
        shown = repr(self.value)
        return ModelError(f"{self.where}: {what}, not {shown[:60]}")

    def get(self, key: str) -> Node | None:
        """The field @key of an object; None if it is missing or null."""
        if not isinstance(self.value, dict):
            raise self.wrong("must be an object")
        value = self.value.get(key)
        return None if value is None else Node(value, f"{self.where}.{key}")

    def items(self) -> list[Node]:
        if not isinstance(self.value, list):
            raise self.wrong("must be a list")
        return [Node(value, f"{self.where}[{place}]") for place, value in enumerate(self.value)]

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.wrong("must be a number")
        try:
            value = float(self.value)
        except OverflowError:
            raise ModelError(f"{self.where}: does not fit a number") from None
        if not math.isfinite(value):
            raise self.wrong("must be finite")
        return value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("must be a string")
        return self.value

    def number_at(self, key: str) -> float | None:
        found = self.get(key)
        return None if found is None else found.number()

    def text_at(self, key: str) -> str | None:
        found = self.get(key)
        return None if found is None else found.text()

    def numbers_at(self, key: str) -> list[float]:
        """A list of numbers; a single number is a list of one."""
        found = self.get(key)
        if found is None:
            return []
        if isinstance(found.value, list):
            return [one.number() for one in found.items()]
        return [found.number()]

    def rows_at(self, key: str) -> list[Node]:
        found = self.get(key)
        return [] if found is None else found.items()


def experiment(report: Report, name: str) -> Node | None:
    """The experiment @name, or None if the run did not have it or it did not run."""
    if name not in report.experiments:
        return None
    node = Node(report.experiments[name], f"experiments.{name}")
    return None if not_run(report, name) is not None else node


def not_run(report: Report, name: str) -> str | None:
    """Why the experiment @name has no result."""
    if name not in report.experiments:
        return "not part of this run"
    node = Node(report.experiments[name], f"experiments.{name}")
    if not node.value:
        return "no result"
    return node.text_at("not_run")


def environment_text(report: Report, *keys: str) -> str | None:
    """A value of the environment, one level deeper for each key, as text."""
    value: object = report.environment
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else str(value)


def place(names: tuple[str | None, ...], name: str | None) -> int:
    return names.index(name) if name in names else len(names)


def arm_order(arm: ArmRow) -> tuple[int, int, int, str]:
    return (
        place(CACHES, arm.cache),
        place(POOLS, arm.pool),
        place(STRATEGIES, arm.strategy),
        arm.id,
    )


def size_name(arm: ArmRow) -> str:
    parts = []
    if arm.vcpus is not None:
        parts.append(f"{arm.vcpus} vCPU" + ("s" if arm.vcpus != 1 else ""))
    if arm.memory_mib is not None:
        parts.append(f"{arm.memory_mib} MiB")
    return ", ".join(parts)


def arm_name(arm: ArmRow) -> str:
    """Short, for a plot or a table of one template: "ws, pool hit, --huge thp"."""
    if arm.kind == "peer":
        return f"{arm.peer} {arm.variant}"
    if arm.strategy is None:
        return arm.variant.replace("-", " ")
    parts = [arm.strategy]
    if arm.pool in ("hit", "miss"):
        parts.append(f"pool {arm.pool}")
    if arm.options:
        parts.append(" ".join(arm.options))
    return ", ".join(parts)


def figure(value: float) -> str:
    """Three significant digits, whole numbers from 100 on, thousands apart."""
    size = abs(value)
    if size >= 1e15:
        return f"{value:.3g}"
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size == 0:
        return "0"
    return f"{value:#.3g}"


def count(value: float) -> str:
    """A whole number in full, else three digits of it."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else figure(value)


def binary_size(value: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{figure(value)} {unit}"
        value /= 1024
    return f"{figure(value)} GiB"


def from_file(path: Path, read: Callable[[], Made]) -> Made:
    """What @read makes of the report in @path; an error of it names the file."""
    try:
        return read()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
