"""Order keys as they are typed, and rates from two samples."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq.server import keys
from ddmq.server.rates import Rates
from ddmq_common.errors import CallerError
from proxy_consumer.blocked_keys import BlockedKey


@pytest.mark.parametrize(
    ("text", "meanings"),
    [
        ("abc", ['"abc"']),
        ('"abc"', ['"abc"']),
        ("17", ["17", '"17"']),
        ("17.0", ["17", '"17.0"']),
        ("true", ["true", '"true"']),
        ("null", ["null", '"null"']),
        ('["b", "a"]', ['["b","a"]', '"[\\"b\\", \\"a\\"]"']),
        ('{"b":1,"a":2.0}', ['{"a":2,"b":1}', '"{\\"b\\":1,\\"a\\":2.0}"']),
        ("é", ['"é"']),
        ('"17"', ['"17"']),
        ("[1", ['"[1"']),
    ],
)
def test_what_a_key_may_mean(text: str, meanings: list[str]) -> None:
    assert keys.readings(text) == meanings


@pytest.mark.parametrize("text", ["", "x" * 100_001])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(CallerError, match=r"allowed: 1 to 100000"):
        keys.readings(text)


class Holder:
    """A consumer service with two blocked keys."""

    def __init__(self) -> None:
        self.blocked = ['"17"', '"abc"']
        self.done: list[tuple[str, str, str]] = []

    def _act(self, action: str, group: str, key: str) -> None:
        if key not in self.blocked:
            raise CallerError(f"key {key} is not blocked")
        self.done.append((action, group, key))

    def park_key(self, group: str, key: str) -> None:
        self._act("park", group, key)

    def skip_key(self, group: str, key: str) -> None:
        self._act("skip", group, key)

    def replay_key(self, group: str, key: str) -> None:
        self._act("replay", group, key)

    def group_keys(self, group: str, limit: int) -> list[BlockedKey]:
        return [
            BlockedKey(key, "T", 0, 5, since, 2, "retrying", "no", 7, True)
            for since, key in zip((20, 10), self.blocked, strict=True)
        ][:limit]


def test_a_number_that_names_no_key_is_tried_as_text() -> None:
    holder: Any = Holder()
    assert keys.act(holder, "G", "skip", "17")["key"] == '"17"'
    assert keys.act(holder, "G", "park", "abc")["key"] == '"abc"'
    assert holder.done == [("skip", "G", '"17"'), ("park", "G", '"abc"')]
    with pytest.raises(CallerError, match="key 18 is not blocked"):
        keys.act(holder, "G", "replay", "18")
    with pytest.raises(CallerError, match="allowed: park, skip, replay"):
        keys.act(holder, "G", "drop", "abc")


def test_the_longest_blocked_comes_first() -> None:
    holder: Any = Holder()
    found = keys.rows(holder, "G", 10)
    assert [row["key"] for row in found] == ['"abc"', '"17"']
    assert found[0]["waiting"] == 7
    with pytest.raises(CallerError, match="allowed: 1 to 1000"):
        keys.rows(holder, "G", 1001)


def test_rates_are_over_the_last_seconds() -> None:
    rates = Rates()
    assert rates.rates(100.0, "a", (5, 5)) is None
    rates.sample(100.0, {"a": (10, 0)})
    assert rates.rates(100.5, "a", (10, 0)) is None
    assert rates.rates(102.0, "a", (30, 2)) == [10.0, 1.0]
    rates.sample(105.0, {"a": (60, 5)})
    assert rates.rates(110.0, "a", (110, 5)) == [10.0, 0.5]
    rates.sample(110.0, {"a": (110, 5)})
    assert rates.rates(115.0, "a", (110, 5)) == [5.0, 0.0], "an idle group's rate falls to nothing"
    assert rates.rates(115.0, "b", (1, 1)) is None
