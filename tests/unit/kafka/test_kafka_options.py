"""What the Kafka engine's options refuse, and that no password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.kafka.options import DEFAULT_SETTINGS, KafkaOptions, StoreOnce, capabilities
from ddmq.server.config import BackendConfig
from ddmq_common.config import load
from ddmq_common.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bootstrap", "nowhere"),
        ("bootstrap", "a:9092,,b:9092"),
        ("namespace", "a.b"),
        ("topic_prefix", "a/b"),
        ("session_ms", 2),
        ("readers", 0),
        ("retention_ms", -2),
        ("window_bytes", 1 << 40),
        ("librdkafka", {"acks": "1"}),
        ("store_once", "numbers"),
        ("store_once", True),
    ],
)
def test_what_is_refused_says_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"kafka: {key} is .*allowed"):
        KafkaOptions(**{"bootstrap": "a:9092", key: value})


@pytest.mark.parametrize(
    ("store_once", "idempotent"),
    [("none", False), ("keys", True), ("all", True), (None, True)],
)
def test_which_sends_are_recognised(store_once: str | None, idempotent: bool) -> None:
    options = KafkaOptions() if store_once is None else KafkaOptions(store_once=StoreOnce(store_once))
    assert capabilities(options).idempotent is idempotent
    assert str(options.shown()["store_once"]) == (store_once or "keys")


@pytest.mark.parametrize("hostile", ["true", "false", "off", "''", "number", "[keys]", "{}", "1", ""])
def test_a_hostile_value_is_rejected_with_what_is_allowed(tmp_path: Path, hostile: str) -> None:
    path = tmp_path / "backend.yaml"
    path.write_text(f"kafka:\n  store_once: {hostile}\n")
    with pytest.raises(ConfigError, match=r"store_once.*allowed: none, keys, all"):
        load(path, BackendConfig)


def test_what_clients_get() -> None:
    options = KafkaOptions("a:9092,[::1]:9093", librdkafka={"linger.ms": "5", "security.protocol": "SSL"})
    assert options.client_settings(linger_ms=0, acks="all") == {
        **DEFAULT_SETTINGS,
        "linger.ms": 0,
        "security.protocol": "SSL",
        "acks": "all",
        "bootstrap.servers": "a:9092,[::1]:9093",
    }


def test_no_secret_is_shown() -> None:
    secret = {"sasl.password": "geheim", "ssl.key.password": "geheim", "ssl.key.pem": "geheim"}
    secret["sasl.jaas.config"] = 'PlainLoginModule required username="u" password="geheim";'  # as Java has it
    secret |= {"sasl.kerberos.kinit.cmd": "echo geheim | kinit u", "sasl.pasword": "geheim"}
    shown = KafkaOptions("a:9092", librdkafka={"sasl.username": "u", **secret}).shown()
    assert "geheim" not in str(shown)
    assert "'sasl.username': 'u'" in str(shown)
