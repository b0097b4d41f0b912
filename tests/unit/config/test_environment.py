"""Every key can be set by a variable of the environment, which goes over files and under the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddmq.server.config import KEYS, load_folder, with_flags
from ddmq.server.effective_settings import list_settings
from ddmq.server.setting_keys import OTHERS, SettingKey
from ddmq_common.errors import ConfigError

BY_NAME = {key.name: key for key in KEYS}


def setting_of(name: str, config: Any) -> tuple[Any, str]:
    (setting,) = [setting for setting in list_settings(config) if setting.key.name == name]
    return setting.value, setting.source


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("ddmq.data_dir", "DDMQ__DATA_DIR"),
        ("ddmq.samples.dir", "DDMQ__SAMPLES__DIR"),
        ("rpc.idle_s", "DDMQ_RPC__IDLE_S"),
        ("file_log.retention.age_ms", "DDMQ_FILE_LOG__RETENTION__AGE_MS"),
        ("backend.kafka.bootstrap", "DDMQ_BACKEND__KAFKA__BOOTSTRAP"),
        ("proxy_consumer.defaults.push.http.urls", "DDMQ_PROXY_CONSUMER__DEFAULTS__PUSH__HTTP__URLS"),
        ("topics.topics", "DDMQ_TOPICS__TOPICS"),
    ],
)
def test_the_variable_of_a_key(name: str, variable: str) -> None:
    assert BY_NAME[name].variable == variable


def test_no_two_keys_have_one_variable_and_none_is_a_commands() -> None:
    variables = {key.variable for key in KEYS}
    assert len(variables) == len(KEYS)
    assert not variables & OTHERS


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_a_variable_with_the_default_changes_nothing_but_the_source(key: SettingKey) -> None:
    (default,) = [setting for setting in list_settings(load_folder(None, {})) if setting.key == key]
    text = default.value if isinstance(default.value, str) else default.format_value()
    (setting,) = [
        setting for setting in list_settings(load_folder(None, {key.variable: text})) if setting.key == key
    ]
    assert setting == default._replace(source=f"variable {key.variable}")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("ddmq.beyond_loopback", "true", True),
        ("ddmq.data_dir", "/var/lib/ddmq: x", "/var/lib/ddmq: x"),
        ("ddmq.data_dir", ".", "."),
        ("ddmq.process_name", "2024", "2024"),
        ("ddmq.admin_names", "[a.example, b.example]", ["a.example", "b.example"]),
        ("ddmq.backup_dir", "", None),
        ("ddmq.samples.dir", "null", None),
        ("rpc.idle_s", "5", 5.0),
        ("file_log.segment_bytes", "64MiB", 64 << 20),
        ("file_log.retention.cleaning_hour", "null", None),
        ("file_log.retention.log_bytes_max", "1GiB", 1 << 30),
        ("proxy_consumer.defaults.start", "1700000000000", "1700000000000"),
        ("proxy_consumer.defaults.retry_intervals_ms", "[5, -1]", [5, -1]),
        ("proxy_consumer.defaults.push.redis.password", "1234", "***"),
        ("backend.kafka.librdkafka", "{sasl.password: hush, linger.ms: '1'}",
         {"sasl.password": "***", "linger.ms": "1"}),
        ("proxy_producer.topic_rates", "{orders: {messages_per_s: 5}}",
         {"orders": {"messages_per_s": 5.0, "bytes_per_s": 0.0, "burst_ms": 1000}}),
        ("delay_service.levels", "- 1s\n- 2s\n", ["1s", "2s"]),
    ],
)  # fmt: skip
def test_the_value_is_text_or_yaml(name: str, text: str, value: Any) -> None:
    variable = BY_NAME[name].variable
    assert setting_of(name, load_folder(None, {variable: text})) == (value, f"variable {variable}")


def test_the_command_line_overrides_the_environment_and_that_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ddmq.yaml"
    path.write_text("log_level: debug\ndata_dir: of-file\n")

    def data_dir(folder: Path | None, environment: dict[str, str], flag: Path | None) -> tuple[Any, str]:
        return setting_of("ddmq.data_dir", with_flags(load_folder(folder, environment), data_dir=flag))

    variables = {"DDMQ__DATA_DIR": "of-environment"}
    assert data_dir(None, {}, None) == ("data", "default")
    assert data_dir(tmp_path, {}, None) == ("of-file", f"{path}:2")
    assert data_dir(tmp_path, variables, None) == ("of-environment", "variable DDMQ__DATA_DIR")
    assert data_dir(tmp_path, variables, Path("of-flag")) == ("of-flag", "command line")
    config = load_folder(tmp_path, variables)
    assert config.serve.log_level == "debug", "the other keys of the file stay"


def test_the_engine_of_the_command_line_has_that_source() -> None:
    config = with_flags(load_folder(None, {}), engine="kafka", bootstrap="a:1")
    assert setting_of("backend.engine", config) == ("kafka", "command line")
    assert setting_of("backend.kafka.bootstrap", config) == ("a:1", "command line")


def test_a_key_inside_another_that_the_file_sets_joins_it(tmp_path: Path) -> None:
    (tmp_path / "ddmq.yaml").write_text("samples: {enabled: false, keep_days: 3}")
    samples = load_folder(tmp_path, {"DDMQ__SAMPLES__KEEP_DAYS": "4"}).serve.samples
    assert (samples.enabled, samples.keep_days) == (False, 4)


@pytest.mark.parametrize(
    ("variable", "text", "error_text"),
    [
        ("DDMQ_RPC__IDLE", "5", "variable DDMQ_RPC__IDLE: unknown; did you mean DDMQ_RPC__IDLE_S?"),
        ("DDMQ_LOG_LEVEL", "info", "variable DDMQ_LOG_LEVEL: unknown; did you mean DDMQ__LOG_LEVEL?"),
        ("DDMQ_DDMQ__DATA_DIR", "x", "did you mean DDMQ__DATA_DIR?"),
        ("DDMQ_PROXY_CONSUMER__TICK_MS", "x", "variable DDMQ_PROXY_CONSUMER__TICK_MS: unknown; did you mean"),
        ("DDMQ_XYZZY", "x", "unknown; DDMQ_ is for settings, whose names docs/configuration.md explains"),
        ("DDMQ_RPC__IDLE_S", "x", "variable DDMQ_RPC__IDLE_S: rpc.idle_s: is 'x'; a number is wanted"),
        ("DDMQ__DATA_DIR", "", "variable DDMQ__DATA_DIR: ddmq.data_dir: is ''; a path is wanted, . for the"),
        ("DDMQ__DATA_DIR", " \t", r"DDMQ__DATA_DIR: ddmq.data_dir: is ' \t'; a path is wanted, . for the"),
        ("DDMQ__BACKUP_DIR", " ", "DDMQ__BACKUP_DIR: ddmq.backup_dir: is ' '; a path is wanted, . for the"),
        ("DDMQ__DRAIN_MS", "-1", "variable DDMQ__DRAIN_MS: ddmq.drain_ms: is -1; allowed: 0 to 600000"),
        ("DDMQ_DELAY_SERVICE__LEVELS", "[1s", "variable DDMQ_DELAY_SERVICE__LEVELS: is not YAML"),
        ("DDMQ_TOPICS__TOPICS", "{a: {queues: 0}}", "topics.topics.a.queues: is 0; allowed: 1 to 1024"),
        ("DDMQ_BACKEND__ENGINE", "kafak", "variable DDMQ_BACKEND__ENGINE: backend.engine: is 'kafak'"),
    ],
)
def test_an_error_names_the_variable(variable: str, text: str, error_text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_folder(None, {variable: text})
    assert error_text in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text", "error_text"),
    [
        ("DDMQ_RPC__CONNECTIONS_MAX", "0", "rpc: connections_max is 0; allowed: at least 1"),
        ("DDMQ__ADMIN", "here", "admin: 'here' is not HOST:PORT"),
        ("DDMQ_BACKEND__KAFKA__SESSION_MS", "1", "session_ms is 1; allowed"),
        ("DDMQ_DELAY_SERVICE__LEVELS", "[1s, 90h]", "levels: the last is 90h"),
        ("DDMQ_FILE_LOG__RETENTION__AGE_MS", "1000", "retention.age_ms in file_log.yaml"),
    ],
)
def test_values_that_contradict_others_name_the_variable(variable: str, text: str, error_text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_folder(None, {variable: text})
    assert error_text in str(caught.value)
    assert str(caught.value).endswith(f"; set by variable {variable}")


def test_an_error_of_a_file_does_not_name_variables(tmp_path: Path) -> None:
    (tmp_path / "rpc.yaml").write_text("connections_max: 0")
    with pytest.raises(ConfigError, match=r"at least 1$"):
        load_folder(tmp_path, {"DDMQ_RPC__IDLE_S": "3"})


@pytest.mark.parametrize(
    "name",
    [
        "DDMQ_PRODUCER", "DDMQ_ADMIN", "DDMQ_COMPILED", "DDMQ_BENCH_DIR", "PATH",
        "DDMQ_SERVICE_HOST", "DDMQ_SERVICE_PORT_ADMIN", "DDMQ_PORT", "DDMQ_PORT_9613_TCP_ADDR",
        "DDMQ_PROXY_SERVICE_HOST", "DDMQ_PROXY_PORT_9613_TCP",
    ],
)  # fmt: skip
def test_variables_that_are_no_settings_are_left_alone(name: str) -> None:
    assert load_folder(None, {name: "tcp://10.0.0.1:9613"}) == load_folder(None, {})


def test_a_secret_of_a_variable_is_not_shown_and_not_blamed_on_a_file(tmp_path: Path) -> None:
    from ddmq.server.readable_secrets import readable_secrets

    (tmp_path / "proxy_consumer.yaml").write_text("linger_max_ms: 20000")
    variables = {
        "DDMQ_PROXY_CONSUMER__DEFAULTS__PUSH__HTTP__SIGNING_KEY": "hush",
        "DDMQ_BACKEND__KAFKA__LIBRDKAFKA": "{sasl.password: hush}",
        "DDMQ_BACKEND__OPTIONS": "{token: hush}",
        "DDMQ_GROUPS__GROUPS": "{g: {topics: {t: {push: {redis: {password: hush}}}}}}",
    }
    config = load_folder(tmp_path, variables)
    assert readable_secrets(config) == []
    assert "hush" not in repr([(setting.value, setting.format_value()) for setting in list_settings(config)])
