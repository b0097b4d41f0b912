"""What a reload puts in force, and what waits for the next start."""

from __future__ import annotations

import dataclasses

import pytest

from ddmq_common.config import ConfigLocation, Overlay, build_overlay, merge_live_values
from ddmq_common.errors import ConfigError
from proxy_consumer.config import LIVE_KEYS, ConsumerConfig, SubscriptionDefaults
from proxy_producer.config import LIVE_KEYS as PRODUCER_LIVE_KEYS
from proxy_producer.config import ProducerConfig


@pytest.mark.parametrize(
    ("keys", "kind"), [(LIVE_KEYS, ConsumerConfig), (PRODUCER_LIVE_KEYS, ProducerConfig)]
)
def test_the_live_keys_are_keys(keys: frozenset[str], kind: type) -> None:
    assert keys < {field.name for field in dataclasses.fields(kind)}


def test_a_key_that_needs_a_restart_keeps_its_value() -> None:
    fresh = ConsumerConfig(idle_ms=5_000, answer_bytes_max=50_000)
    done = merge_live_values(ConsumerConfig(), fresh, LIVE_KEYS)
    assert done.config == ConsumerConfig(idle_ms=5_000)
    assert (done.changed, done.waiting) == (("idle_ms",), ("answer_bytes_max",))


def test_an_overlay_keeps_only_what_is_named() -> None:
    defaults = build_overlay(
        SubscriptionDefaults, {"concurrency": 5, "in_flight_bytes_max": "2MiB"}, ConfigLocation("x", "")
    )
    assert defaults.values == {"concurrency": 5, "in_flight_bytes_max": 2 << 20}
    assert defaults.apply_to(SubscriptionDefaults(batch_max=7)).batch_max == 7
    with pytest.raises(ConfigError, match=r"^x: order_key is 'KEY' and model is broadcasting"):
        build_overlay(SubscriptionDefaults, {"order_key": "KEY"}, ConfigLocation("x", "")).apply_to(
            SubscriptionDefaults(model="broadcasting")
        )
    assert defaults == Overlay({"concurrency": 5, "in_flight_bytes_max": 2 << 20})
