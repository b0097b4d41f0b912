"""Filters and order keys through a whole proxy: what is delivered, and what counts as finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.records import PASSED_MAX, NewRecord
from ddmq_common.config import load
from ddmq_common.delivery import encode
from ddmq_common.errors import ConfigError
from proxy_consumer.config import GroupsFile, SubscriptionDefaults
from tests.service.consumer.consumer_rig import ConsumerRig, result


def send(rig: ConsumerRig, *messages: tuple[bytes, bytes, dict[bytes, bytes]]) -> None:
    """(tag, body, properties) each."""
    records = [
        NewRecord("T", 0, number.to_bytes(16, "big"), 0, encode(b"", body, tag, properties), tags=tag)
        for number, (tag, body, properties) in enumerate(messages)
    ]
    rig.wait(rig.backend.append(records, rig.deadline()))


def subscribed(**settings: object) -> ConsumerRig:
    rig = ConsumerRig()
    rig.topic()
    rig.subscribe(config=SubscriptionDefaults(start="first", **settings))  # type: ignore[arg-type]
    return rig


@pytest.mark.parametrize(
    "settings",
    [{"tags": "red || green"}, {"sql": "TAGS IN ('red', 'green')"}, {"sql": "n > 2 AND TAGS <> 'blue'"}],
)
def test_what_does_not_fit_is_not_delivered_and_counts_as_finished(settings: dict[str, str]) -> None:
    rig = subscribed(**settings)
    tags = [b"blue", b"", b"blue", b"red", b"blue", b"red||green", b"green", b"blue"]
    send(rig, *((tag, b"b", {b"n": b"%d" % n if tag else b"0"}) for n, tag in enumerate(tags)))
    expected = [3, 5, 6] if "n > 2" in settings.get("sql", "") else [3, 6]
    offsets = rig.pull(count=100).offsets
    assert offsets == expected
    rig.pull(count=100, result=result(offsets), linger=20)
    rig.advance(1.0)
    assert rig.progress().committed == len(tags)


def test_a_match_behind_more_than_one_read_passes_over_is_delivered() -> None:
    rig = subscribed(tags="red")
    many = PASSED_MAX + 10
    send(rig, *((b"blue", b"", {}) for _ in range(many)), (b"red", b"found", {}))
    assert rig.pull(count=10).offsets == [many]


def test_a_path_into_the_body_keeps_its_messages_in_order() -> None:
    rig = subscribed(order_key="$.user.id")
    bodies = [
        b'{"user":{"id":1}}',
        b'{"user":{"id":2}}',
        b'{"user":{"id":1.0}}',
        b'{"user":{"id":"1"}}',
        b"none",
    ]
    send(rig, *((b"", body, {}) for body in bodies))
    assert rig.pull(count=10).offsets == [0, 1, 3, 4]
    assert rig.pull(count=10, result=result([0])).offsets == [2]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("tags: 'A ||'", "tags is 'A ||': at character 5"),
        ("sql: a = ", "sql is 'a =': at character 4"),
        ("order_key: $.a-b", "order_key is '$.a-b': at character 4"),
    ],
)
def test_a_bad_expression_in_yaml_is_rejected_with_file_line_key_and_column(
    tmp_path: Path, line: str, what: str
) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(f"groups:\n  G:\n    topics:\n      T:\n        {line}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, GroupsFile)
    assert what in str(caught.value)
    assert f"{path}:4: groups.G.topics.T: " in str(caught.value)
