"""Order keys as they are typed, and rates from two samples."""

from __future__ import annotations

from typing import Any

import pytest

from backend.completion import Completion, succeeded
from backend.records import QueueRef
from ddmq.server.admin import keys
from ddmq.server.admin.groups import Rates
from ddmq.server.http.routing import NoSuchGroupError
from ddmq_common.errors import CallerError
from proxy_consumer.groups.blocked_keys import BlockedKey
from proxy_consumer.groups.ordering import Outcomes
from proxy_consumer.groups.stats import GroupSummary


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
    assert keys.possible_keys(text) == meanings


@pytest.mark.parametrize("text", ["", "x" * 100_001])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(CallerError, match=r"allowed: 1 to 100000"):
        keys.possible_keys(text)


class BlockedKeysConsumer:
    """A consumer service with two blocked keys and a parked one."""

    def __init__(self, order_key: str = "$.a") -> None:
        self.blocked = ['"17"', '"abc"']
        self.order_key = order_key
        self.done: list[tuple[str, str, str]] = []

    def find_group(self, name: str) -> GroupSummary | None:
        return GroupSummary("G", "log", 0, ("T",), 0) if name == "G" else None

    def load_order_keys(self, group: str, *, hold: bool = False) -> Completion[GroupKeys]:
        return succeeded(GroupKeys(self, group))


class GroupKeys:
    """The order keys of its group."""

    parked_keys = frozenset({'"abc"', '"zzz"'})

    def __init__(self, consumer: BlockedKeysConsumer, group: str) -> None:
        self.consumer = consumer
        self.group = group
        self.order_keys = frozenset({consumer.order_key})

    def single_chain_queues(self) -> dict[QueueRef, str]:
        return {}

    def park(self, key: str) -> Outcomes:
        return self._did("park", key)

    def skip(self, key: str) -> Outcomes:
        return self._did("skip", key)

    def replay(self, key: str, *, take_away: bool) -> Outcomes:
        return self._did("take away" if take_away else "replay", key)

    def _did(self, action: str, key: str) -> Outcomes:
        self.consumer.done.append((action, self.group, key))
        return succeeded([])

    def blocked_keys(self, limit: int) -> list[BlockedKey]:
        return [
            BlockedKey(key, "T", 0, 5, since, 2, "retrying", "no", 7, True)
            for since, key in zip((20, 10), self.consumer.blocked, strict=True)
        ][:limit]


@pytest.mark.parametrize(
    ("order_key", "text", "key"),
    [
        ("$.a", "17", '"17"'),
        ("$.a", "18", "18"),
        ("KEY", "18", '"18"'),
        ("KEY", "abc", '"abc"'),
        ("KEY", "zzz", '"zzz"'),
    ],
)
def test_which_key_is_meant(order_key: str, text: str, key: str) -> None:
    consumer: Any = BlockedKeysConsumer(order_key)
    assert keys.act_on_key(consumer, "G", "skip", text)["key"] == key
    assert consumer.done == [("skip", "G", key)]


def test_what_cannot_be_done_about_a_key() -> None:
    consumer: Any = BlockedKeysConsumer()
    with pytest.raises(NoSuchGroupError, match="group 'H' does not exist"):
        keys.act_on_key(consumer, "H", "park", "abc")
    with pytest.raises(CallerError, match="take_away goes with replay, not with skip"):
        keys.act_on_key(consumer, "G", "skip", "abc", True)
    assert consumer.done == []


@pytest.mark.parametrize(("take_away", "action"), [((), "replay"), ((True,), "take away")])
def test_only_who_says_so_takes_a_message_away(take_away: tuple[bool, ...], action: str) -> None:
    consumer: Any = BlockedKeysConsumer()
    done = keys.act_on_key(consumer, "G", "replay", "abc", *take_away)
    assert consumer.done == [(action, "G", '"abc"')]
    assert done == {"group": "G", "key": '"abc"', "action": "replay", "parked": True, "heads": []}


def test_the_longest_blocked_comes_first() -> None:
    consumer: Any = BlockedKeysConsumer()
    rows = keys.list_blocked_keys(consumer, "G", 10)
    assert [row["key"] for row in rows] == ['"abc"', '"17"', '"zzz"']
    assert (rows[2]["state"], rows[2]["topic"]) == ("parked", "")
    assert rows[0]["waiting"] == 7
    with pytest.raises(CallerError, match="allowed: 1 to 1000"):
        keys.list_blocked_keys(consumer, "G", 1001)


def test_rates_are_over_the_last_seconds() -> None:
    rates, one = Rates(), ("a", "t")
    assert rates.rates(100.0, one, (5, 5)) is None
    rates.sample(100.0, {one: (10, 0)})
    assert rates.rates(100.5, one, (10, 0)) is None
    assert rates.rates(102.0, one, (30, 2)) == [10.0, 1.0]
    rates.sample(105.0, {one: (60, 5)})
    assert rates.rates(110.0, one, (110, 5)) == [10.0, 0.5]
    rates.sample(110.0, {one: (110, 5)})
    assert rates.rates(115.0, one, (110, 5)) == [5.0, 0.0], "an idle group's rate falls to nothing"
    assert rates.rates(115.0, ("b", "t"), (1, 1)) is None
