"""conf/ is the reference of the configuration, so it must be true: every key there, every default as said."""

import dataclasses
from pathlib import Path

import pytest

from ddmq.server.config import DECLARED, FILES, ServeConfig, load_folder, resolved_values, with_flags
from ddmq_common.config import load
from ddmq_common.errors import ConfigError

CONF = Path(__file__).resolve().parents[3] / "conf"


@pytest.mark.parametrize("section", [section for section in FILES if section not in DECLARED])
def test_a_file_names_every_key_with_its_default(section: str) -> None:
    name, kind = FILES[section]
    assert load(CONF / name, kind) == kind()
    text = (CONF / name).read_text()
    for field in dataclasses.fields(kind):
        assert f"{field.name}:" in text, f"{name} does not mention {field.name}"


def test_the_folder_loads_as_a_whole() -> None:
    config = load_folder(CONF)
    assert config.topics.topics["orders"].queues == 4
    assert config.groups.groups == {}
    assert config.serve == ServeConfig()
    assert resolved_values(config)["serve"]["drain_ms"] == 10_000


def test_the_page_about_configuration_lists_every_file() -> None:
    page = (CONF.parent / "docs" / "configuration.md").read_text()
    assert [path.name for path in CONF.glob("*.yaml") if f"(../conf/{path.name})" not in page] == []


def test_flags_override_files() -> None:
    config = with_flags(
        load_folder(CONF), producer="127.0.0.1:1", consumer=None, admin=None, data_dir=Path("x")
    )
    assert str(config.serve.listen_address("producer")) == "127.0.0.1:1"
    assert str(config.serve.listen_address("consumer")) == "127.0.0.1:9713"
    assert config.serve.data_dir == Path("x")


def test_the_engine_of_the_command_line_goes_over_the_file() -> None:
    config = with_flags(load_folder(CONF), engine="kafka", bootstrap="a:1,b:2")
    assert (config.backend.engine, config.backend.kafka.bootstrap) == ("kafka", "a:1,b:2")
    assert with_flags(load_folder(CONF), engine=None, bootstrap=None).backend.engine == "file_log"
    with pytest.raises(ConfigError, match=r"--bootstrap a:1 is for --backend kafka; the backend is file_log"):
        with_flags(load_folder(CONF), bootstrap="a:1")
    with pytest.raises(ConfigError, match="kafka: bootstrap is nowhere"):
        with_flags(load_folder(CONF), engine="kafka", bootstrap="nowhere")


def test_secrets_for_kafka_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "backend.yaml").write_text("kafka: {librdkafka: {sasl.password: hush, linger.ms: '1'}}")
    librdkafka = resolved_values(load_folder(tmp_path))["backend"]["kafka"]["librdkafka"]
    assert librdkafka == {"sasl.password": "***", "linger.ms": "1"}


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        (
            "ddmq.yaml",
            "producer: here",
            "ddmq.yaml: top level: producer: 'here' is not HOST:PORT (for example 127.0.0.1:9613",
        ),
        ("ddmq.yaml", "drain: 1", "ddmq.yaml:1: drain: unknown key; did you mean 'drain_ms'?"),
        (
            "proxy_consumer.yaml",
            "defaults:\n  sql: amount >>",
            "proxy_consumer.yaml:1: defaults: sql is 'amount >>': at character 9",
        ),
        (
            "groups.yaml",
            "groups:\n  g:\n    topics:\n      t:\n        order_key: $.[",
            "groups.yaml:4: groups.g.topics.t: order_key is '$.[': at character 3",
        ),
        (
            "groups.yaml",
            "groups:\n  g:\n    topics:\n      t:\n        tags: a ||",
            "groups.yaml:4: groups.g.topics.t: tags",
        ),
        ("topics.yaml", "topics:\n  a/b: {}", "topic name 'a/b' has a character"),
        ("topics.yaml", "topics:\n  '%DLQ%g': {}", "topic '%DLQ%g' belongs to the system"),
        ("topics.yaml", "topics:\n  carrera_heartbeat: {}", "topic 'carrera_heartbeat' is for heartbeats"),
        (
            "topics.yaml",
            "topics:\n  a:\n    queues: 0",
            "topics.yaml:3: topics.a.queues: is 0; allowed: 1 to 1024",
        ),
        (
            "proxy_producer.yaml",
            "delay:\n  delay_s_max: 10000000000",
            "proxy_producer.yaml:2: delay.delay_s_max: is 10000000000; allowed: 1 to 3153600000",
        ),
        (
            "proxy_producer.yaml",
            "delay:\n  occurrences_max: 1048576",
            "proxy_producer.yaml:2: delay.occurrences_max: is 1048576; allowed: 1 to 1000000",
        ),
        ("rpc.yaml", "connections_max: 0", "connections_max is 0; allowed: at least 1"),
    ],
)
def test_errors_name_file_key_value_and_what_is_allowed(
    tmp_path: Path, name: str, text: str, error: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_folder(tmp_path)
    assert error in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none is not a folder"):
        load_folder(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ddmq.yml", "ddmq.yaml"),
        ("topic.yaml", "topics.yaml"),
        ("proxy-consumer.yaml", "proxy_consumer.yaml"),
    ],
)
def test_a_file_whose_name_is_misspelt_is_refused(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / name).write_text("log_level: bogus")
    (tmp_path / "alerts.yaml").write_text("others: are nobody's business")
    with pytest.raises(ConfigError, match=f"{name} is not read; did you mean {meant}"):
        load_folder(tmp_path)
    (tmp_path / name).rename(tmp_path / "other.yml")
    load_folder(tmp_path)
