"""No bound is left out of docs/bounds.md: every number of the configuration is listed there, or as none."""

from __future__ import annotations

import dataclasses
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from backend.file_log import FileLogOptions
from ddmq.server.config import BackendConfig, ServeConfig, TopicEntry
from ddmq_rpc.traffic import RpcLimits
from delay_service.config import DelayConfig
from proxy_consumer.config import ConsumerConfig
from proxy_producer.config import ProducerConfig, RateLimit
from tools import bounds

FILES: dict[str, type[Any]] = {
    "ddmq": ServeConfig,
    "rpc": RpcLimits,
    "backend": BackendConfig,
    "file_log": FileLogOptions,
    "proxy_producer": ProducerConfig,
    "proxy_consumer": ConsumerConfig,
    "delay_service": DelayConfig,
    "topics": TopicEntry,
}
NUMBERS = (int, float)


def leaf_types(kind: Any) -> Iterator[Any]:
    """A type and those that it is made of: of Mapping[str, RateLimit], RateLimit too."""
    yield kind
    for argument in typing.get_args(kind):
        yield from leaf_types(argument)


def numbers(kind: type[Any], prefix: str) -> Iterator[str]:
    """The keys of a dataclass that hold a number, or several; a rate limit is one key."""
    hints = typing.get_type_hints(kind)
    for name in (field.name for field in dataclasses.fields(kind)):
        types = list(leaf_types(hints[name]))
        if RateLimit in types or any(argument in NUMBERS for argument in types):
            yield f"{prefix}.{name}"
        elif dataclasses.is_dataclass(types[0]):
            yield from numbers(types[0], f"{prefix}.{name}")  # type: ignore[arg-type]


CONFIGURED = sorted(key for file, kind in FILES.items() for key in numbers(kind, file))
LISTED = Counter(bound.configured for bound in bounds.bounds() if bound.configured)
LISTED.update(bounds.not_bounds())


def test_the_walk_finds_what_is_deep_and_what_is_none() -> None:
    assert "proxy_consumer.defaults.push.http.max_retry" in CONFIGURED
    assert "file_log.retention.log_bytes_max" in CONFIGURED
    assert "proxy_producer.topic_rates" in CONFIGURED
    assert "proxy_producer.auto_create_topics" not in CONFIGURED


@pytest.mark.parametrize("key", CONFIGURED)
def test_every_number_is_listed_once(key: str) -> None:
    advice = "add it to tools/bounds.yaml: what it holds for, what happens at it; or to not_bounds there"
    assert LISTED[key] == 1, f"{key} is listed {LISTED[key]} times; {advice}"


def test_nothing_is_listed_that_is_not_configured() -> None:
    assert set(LISTED) <= set(CONFIGURED)


def test_what_is_called_a_maximum_is_a_bound() -> None:
    misnamed = [key for key in bounds.not_bounds() if key.endswith("_max") and "_ms_" not in key]
    assert misnamed == []


def test_each_row_says_what_happens() -> None:
    assert all(bound.at_it and bound.together for bound in bounds.bounds())
