"""A short run of consume, work, produce under kill -9, and proof that its rules notice each broken promise.

The long runs: `python -m tests.crash.reply_run --seed 1 --jobs 10000`, and with an even seed, without order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import reply_run
from tests.crash.reply_load import Work, count_parts
from tests.crash.reply_run import broken_rules

TWO = next(f"k1/{number}" for number in range(100) if count_parts(f"k1/{number}") == 2)
PARTS = {0: [Work(TWO, 0, 2, "t"), Work(TWO, 1, 2, "t")]}
SIDES = {1: [Work(TWO, 0, 1, "t")]}
ENDS = {2: [Work(TWO, 0, 2, "u"), Work(TWO, 1, 2, "v")]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_every_job_is_complete_exactly_once_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    printed: list[str] = []
    assert reply_run.run(tmp_path, seed, 300, printed.append) == 0, "\n".join(printed)


def test_an_honest_run() -> None:
    assert broken_rules([TWO], PARTS, SIDES, ENDS, ordered=True) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parts": {}}, "parts of"),
        ({"parts": {0: PARTS[0][:1]}}, "2 are wanted"),
        ({"parts": {0: PARTS[0], 1: PARTS[0][:1]}}, "parts of"),
        ({"parts": {0: [PARTS[0][0], Work(TWO, 1, 2, "other")]}}, "several handlings"),
        ({"sides": {1: [Work(TWO, 0, 1, "other")]}}, "two handlings"),
        ({"sides": {1: SIDES[1] * 2}}, "sides of"),
        ({"ends": {2: ENDS[2][:1]}}, "ends of"),
        ({"ends": {2: ENDS[2][::-1]}}, "comes after"),
        ({"jobs": []}, "nobody sent it"),
    ],
)
def test_every_broken_promise_is_reported(changed: dict[str, object], words: str) -> None:
    arguments = {"jobs": [TWO], "parts": PARTS, "sides": SIDES, "ends": ENDS, **changed}
    broken = broken_rules(**arguments, ordered=True)  # type: ignore[arg-type]
    assert any(words in text for text in broken), broken
