"""conf/proxy_producer.yaml is the defaults, and what is wrong in a file is said with its place."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from ddmq_common.config import load
from ddmq_common.errors import ConfigError
from proxy_producer.config import ProducerConfig, RateLimit

CONF = Path(__file__).parents[3] / "conf" / "proxy_producer.yaml"


def test_the_commented_file_is_exactly_the_defaults():
    assert load(CONF, ProducerConfig) == ProducerConfig()


def test_the_commented_file_shows_every_key():
    shown = yaml.safe_load(CONF.read_text(encoding="utf-8"))
    assert set(shown) == {field.name for field in dataclasses.fields(ProducerConfig)}


def test_limits_by_topic(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("topic_rates:\n  orders:\n    messages_per_s: 5\n    bytes_per_s: 8MiB\n")
    assert load(path, ProducerConfig).topic_rates == {"orders": RateLimit(5.0, float(8 << 20))}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("body_byte_max: 1\n", ["p.yaml:1", "body_bytes_max"]),
        ("queues_default: 0\n", ["p.yaml:1", "queues_default", "1 to 1024"]),
        ("body_bytes_max: 8MiB\n", ["8388608", "at most batch_bytes_max"]),
        ("topic_rates:\n  a/b:\n    messages_per_s: 1\n", ["'a/b'"]),
        ("rate:\n  messages_per_s: -1\n", ["p.yaml:2", "rate.messages_per_s"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, words):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, ProducerConfig)
    for word in words:
        assert word in str(caught.value)
