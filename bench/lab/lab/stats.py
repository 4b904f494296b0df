# SPDX-License-Identifier: Apache-2.0
"""Statistics of the lab: median, nearest-rank percentiles, bootstrap intervals, a test of change.

Standard library only: it also runs inside the test host. Everything random is drawn from a seed, so
the same samples always give the same interval.

The bootstrap. The median of a resample is one order statistic of it (or the mean of two), and the
k-th smallest of n uniform draws is distributed as Beta(k, n + 1 - k). So each resampled median is
drawn straight from that distribution of ranks: the same bootstrap as drawing n values and sorting
them, at a cost that does not grow with n.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
RESAMPLES = 4000
# With fewer, even the whole range of the samples holds the true median less often than 95 %.
MIN_FOR_INTERVAL = 6


class StatsError(ValueError):
    """Samples that no statistic can be made of: none, or not finite numbers."""


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def scaled(self, by: float) -> Interval:
        return Interval(self.low * by, self.high * by)


@dataclass(frozen=True)
class Summary:
    """What a table prints of one arm's one clock."""

    n: int
    median: float
    p99: float
    interval: Interval | None  # of the median; None when n is too small for one


@dataclass(frozen=True)
class Ratio:
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Change:
    """After against before. The intervals and @p are None where n is too small for them."""

    n_before: int
    n_after: int
    before: float  # medians
    after: float
    difference: Interval | None  # of after - before
    p: float | None  # of Mann-Whitney
    ratio: Ratio | None  # after / before; None when a value is not positive


def checked(values: Iterable[float], what: str = "samples") -> list[float]:
    """@values as sorted floats, or StatsError."""
    found: list[float] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise StatsError(f"{what}: {value!r} is not a number")
        try:
            number = float(value)
        except OverflowError:
            raise StatsError(f"{what}: an integer of {value.bit_length()} bits") from None
        if not math.isfinite(number):
            raise StatsError(f"{what}: {number} is not finite")
        found.append(number)
    if not found:
        raise StatsError(f"{what}: there are none")
    found.sort()
    return found


def middle(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return ordered[half - 1] / 2 + ordered[half] / 2


def median(values: Iterable[float]) -> float:
    return middle(checked(values))


def rank(share: float, n: int) -> int:
    """Nearest rank (from 0) of the @share percentile of @n ordered values."""
    if not 0.0 < share <= 1.0:
        raise StatsError(f"percentile: {share} is not within (0, 1]")
    # Rounded, because 0.07 * 100 is a little more than 7.
    return max(1, math.ceil(round(share * n, 9))) - 1


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank: the smallest value that at least @share of all values do not exceed."""
    ordered = checked(values)
    return ordered[rank(share, len(ordered))]


def p99(values: Iterable[float]) -> float:
    """Of fewer than 100 values this is the largest."""
    return percentile(values, 0.99)


@functools.lru_cache(maxsize=256)
def drawn_ranks(n: int, resamples: int, name: str) -> tuple[tuple[int, int], ...]:
    """For each resample of @n values, the ranks of the two values whose mean is its median."""
    draw = random.Random(f"thaw {name}")
    lower = (n + 1) // 2  # rank from 1 of the lower of the two
    found = []
    for _ in range(resamples):
        u = draw.betavariate(lower, n + 1 - lower)
        v = u
        if n % 2 == 0:
            # The next one up is the smallest of the n - lower draws that lie above u.
            v = u + (1.0 - u) * (1.0 - draw.random() ** (1.0 / (n - lower)))
        found.append((min(n - 1, int(n * u)), min(n - 1, int(n * v))))
    return tuple(found)


def resampled_medians(ordered: Sequence[float], resamples: int, name: str) -> list[float]:
    """Medians of @resamples bootstrap resamples of the sorted @ordered (see the file's head)."""
    halves = [value / 2 for value in ordered]
    return [halves[i] + halves[j] for i, j in drawn_ranks(len(ordered), resamples, name)]


def central(values: list[float], confidence: float) -> Interval:
    """The @confidence part in the middle of @values (sorted here)."""
    if not 0.0 < confidence < 1.0:
        raise StatsError(f"confidence: {confidence} is not within (0, 1)")
    values.sort()
    outside = (1.0 - confidence) / 2
    last = len(values) - 1
    low = math.floor(outside * last)
    return Interval(values[low], values[last - low])


def median_interval(
    values: Iterable[float],
    seed: int = 1,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """Percentile-bootstrap interval of the median; None below MIN_FOR_INTERVAL samples."""
    ordered = checked(values)
    if len(ordered) < MIN_FOR_INTERVAL:
        return None
    drawn = resampled_medians(ordered, resamples, f"median {seed}")
    return central(drawn, confidence)


def summarize(values: Iterable[float], seed: int = 1) -> Summary:
    ordered = checked(values)
    return Summary(len(ordered), middle(ordered), p99(ordered), median_interval(ordered, seed))


def ratio_of_medians(
    above: Iterable[float],
    below: Iterable[float],
    seed: int = 1,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Ratio:
    """median(@above) / median(@below), both resampled, independently of each other."""
    top, bottom = checked(above), checked(below)
    if bottom[0] <= 0.0 or top[0] < 0.0:
        raise StatsError("ratio: a value below it is not positive, or one above it is negative")
    value = middle(top) / middle(bottom)
    if min(len(top), len(bottom)) < MIN_FOR_INTERVAL:
        return Ratio(value, None)
    tops = resampled_medians(top, resamples, f"above {seed}")
    bottoms = resampled_medians(bottom, resamples, f"below {seed}")
    drawn = [a / b for a, b in zip(tops, bottoms, strict=True)]
    return Ratio(value, central(drawn, confidence))


def difference_interval(
    after: Iterable[float],
    before: Iterable[float],
    seed: int = 1,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """Bootstrap interval of median(@after) - median(@before); None with too few samples."""
    late, early = checked(after), checked(before)
    if min(len(late), len(early)) < MIN_FOR_INTERVAL:
        return None
    lates = resampled_medians(late, resamples, f"above {seed}")
    earlies = resampled_medians(early, resamples, f"below {seed}")
    return central([a - b for a, b in zip(lates, earlies, strict=True)], confidence)


def mann_whitney(one: Iterable[float], other: Iterable[float]) -> float:
    """Two-sided p that both come from one distribution: normal approximation, ties and continuity
    corrected; good from about 8 samples a side."""
    first, second = checked(one), checked(other)
    n, m = len(first), len(second)
    pooled = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    rank_sum, ties, at = 0.0, 0, 0
    while at < n + m:
        end = at
        while end < n + m and pooled[end][0] == pooled[at][0]:
            end += 1
        same = end - at
        ties += same**3 - same
        of_first = sum(1 for _, side in pooled[at:end] if side == 0)
        rank_sum += of_first * (at + 1 + end) / 2
        at = end
    u = rank_sum - n * (n + 1) / 2
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0.0:  # all values are one
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjustment of p-values for testing all of them at once, in the order given."""
    adjusted = [0.0] * len(ps)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, ps[index] * (len(ps) - place)))
        adjusted[index] = highest
    return adjusted


def change(before: Iterable[float], after: Iterable[float], seed: int = 1) -> Change:
    """How @after differs from @before; beyond_noise() judges it."""
    early, late = checked(before), checked(after)
    old, new = middle(early), middle(late)
    positive = early[0] > 0.0 and late[0] >= 0.0
    ratio = Ratio(new / old, None) if positive else None
    if min(len(early), len(late)) < MIN_FOR_INTERVAL:
        return Change(len(early), len(late), old, new, None, None, ratio)
    lates = resampled_medians(late, RESAMPLES, f"above {seed}")
    earlies = resampled_medians(early, RESAMPLES, f"below {seed}")
    pairs = list(zip(lates, earlies, strict=True))
    if positive:
        ratio = Ratio(new / old, central([a / b for a, b in pairs], CONFIDENCE))
    difference = central([a - b for a, b in pairs], CONFIDENCE)
    return Change(len(early), len(late), old, new, difference, mann_whitney(early, late), ratio)


def beyond_noise(found: Change, p: float | None = None, threshold: float = 0.0) -> bool:
    """Has it changed? Three must agree: the interval of the difference of medians excludes 0;
    Mann-Whitney's p is small (@p: after adjustment, else as it is); and the medians differ by more
    than the share @threshold of the one before."""
    p = found.p if p is None else p
    if p is None or found.difference is None:
        return False
    return (
        p < 1.0 - CONFIDENCE
        and not found.difference.holds(0.0)
        and abs(found.after - found.before) > threshold * abs(found.before)
    )


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares through (x, y): slope and intercept."""
    xs = [float(x) for x, _ in points]
    ys = [float(y) for _, y in points]
    if len(set(xs)) < 2:
        raise StatsError("line: two different x are needed")
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x
