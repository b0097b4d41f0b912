"""Topic names to Kafka's and back: each from the other, and nothing let in that is not ours to see."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.kafka.options import KAFKA_NAME_MAX, Names, incarnation_of
from ddmq_common.errors import CallerError

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_\-%|]{1,40}", fullmatch=True),
    st.lists(st.sampled_from(["%2E", "%2e", "-", "ddmq", "x", "_", "%", "|", "2E"]), min_size=1).map("".join),
).filter(lambda name: len(name) <= 127)
KAFKAS = st.one_of(
    st.from_regex(r"[A-Za-z0-9._\-]{1,60}", fullmatch=True),
    st.lists(st.sampled_from(["ddmq.x.", "-25", "-2e", "-2E", ".", "_", "a"]), min_size=1).map("".join),
)
PREFIXES = st.sampled_from(["", "one.", "one-"])


@given(name=NAMES, prefix=PREFIXES)
def test_own_names_are_decoded_from_kafkas(name: str, prefix: str) -> None:
    names = Names("ddmq", prefix)
    try:
        kafka_name = names.to_kafka(name)
    except CallerError:
        assert 3 * len(name) > 200
        return
    assert re.fullmatch(r"[A-Za-z0-9._\-]{1,249}", kafka_name)
    assert kafka_name.startswith(prefix)
    assert names.from_kafka(kafka_name) == name


@given(kafka_name=KAFKAS, prefix=PREFIXES)
def test_what_is_let_in_comes_back(kafka_name: str, prefix: str) -> None:
    names = Names("ddmq", prefix)
    name = names.from_kafka(prefix + kafka_name)
    assert name is None or names.to_kafka(name) == prefix + kafka_name


@pytest.mark.parametrize(
    ("name", "kafka_name"),
    [
        ("orders", "orders"),
        ("eu%2Eorders", "eu.orders"),
        ("%RETRY%billing-eu", "ddmq.x.-25RETRY-25billing-2Deu"),
        ("_hidden", "ddmq.x._hidden"),
        ("ddmq%2Esettings", "ddmq.x.ddmq-252Esettings"),
        ("%2E", "ddmq.x.-252E"),
        ("a|b", "ddmq.x.a-7Cb"),
    ],
)
def test_by_example(name: str, kafka_name: str) -> None:
    assert Names().to_kafka(name) == kafka_name
    assert Names().from_kafka(kafka_name) == name


@pytest.mark.parametrize(
    "kafka_name", ["_schemas", "__consumer_offsets", "ddmq.settings", "ddmq.x.", "ddmq.x.-2d", "x" * 200]
)
def test_what_is_never_let_in(kafka_name: str) -> None:
    assert Names().from_kafka(kafka_name) is None


def test_patterns_and_prefix_decide_which_topics_are_admitted() -> None:
    names = Names("ddmq", "", ("orders.*", "bill?"))
    assert names.from_kafka("orders.eu") == "orders%2Eeu"
    assert names.from_kafka("bills") == "bills"
    assert names.from_kafka("other") is None
    assert names.from_kafka("ddmq.x.-25RETRY-25g") == "%RETRY%g"
    assert Names("ddmq", "one.").from_kafka("orders") is None
    assert Names("ddmq", "one.").system_topic("settings") == "one.ddmq.settings"


def test_the_prefix_precedes_the_ids_of_groups() -> None:
    names = Names("ddmq", "one.")
    assert names.system_group("reader") == "one.ddmq.reader"
    assert names.to_kafka_group("billing") == "one.billing"
    assert (Names().system_group("reader"), Names().to_kafka_group("billing")) == ("ddmq.reader", "billing")


def test_names_that_are_too_long_there() -> None:
    with pytest.raises(CallerError, match=str(KAFKA_NAME_MAX)):
        Names().to_kafka("|" * 100)


def test_incarnations_differ_and_are_48_bits() -> None:
    incarnations = {incarnation_of(f"id-{n}") for n in range(1000)}
    assert len(incarnations) == 1000
    assert all(0 < number < 1 << 48 for number in incarnations)
