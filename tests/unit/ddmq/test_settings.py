"""The one table of settings: complete, and the same everywhere."""

import dataclasses

import click
import pytest
from click.testing import CliRunner

from ddmq.cli.operate.groups.group import select_settings, setting_name, settings_options
from ddmq.settings import TABLE, WORDS
from proxy_consumer.config import SubscriptionDefaults

FIELDS = [field.name for field in dataclasses.fields(SubscriptionDefaults)]


def test_every_setting_has_its_words_and_nothing_else_has() -> None:
    assert sorted(WORDS) == sorted(FIELDS)
    assert [setting.name for setting in TABLE] == FIELDS


def test_the_help_names_the_default_and_what_is_allowed() -> None:
    by_name = {setting.name: setting for setting in TABLE}
    assert by_name["concurrency"].help.endswith("[1 to 1,000,000; default: 1024]")
    assert by_name["model"].help.endswith("[clustering, broadcasting; default: clustering]")
    assert by_name["retry_intervals_ms"].help.endswith("default: 100,150,300]")
    assert by_name["order_key"].help.endswith("[default: '']")


@click.command()
@settings_options
def probe(**options: object) -> None:
    click.echo(repr(select_settings(options)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--concurrency", "5", "--tags", "a || b"], {"concurrency": 5, "tags": "a || b"}),
        (["--retry-intervals-ms", "100, 150,-1"], {"retry_intervals_ms": [100, 150, -1]}),
        (["--retry-intervals-ms", "[100]"], {"retry_intervals_ms": [100]}),
        (["--retry-intervals-ms", ""], {"retry_intervals_ms": []}),
        (["--max-timeout-redeliveries", "-1"], {"max_timeout_redeliveries": -1}),
        (["--in-flight-bytes-max", "2MiB"], {"in_flight_bytes_max": "2MiB"}),
        (["--order-key", "", "--order-scope", "topic"], {"order_key": "", "order_scope": "topic"}),
        (["--order-key", "$.key", "--order-scope", "topic"], {"order_key": "$.key", "order_scope": "topic"}),
        (["--order-key", "KEY"], {"order_key": "KEY"}),
        (
            ["--actions", "Json, PullServer", "--push", '{"http": {"urls": ["http://a/"]}}'],
            {"actions": ["Json", "PullServer"], "push": {"http": {"urls": ["http://a/"]}}},
        ),
        (["--no-pressure-traffic"], {"pressure_traffic": False}),
        (["--start", "2026-11-21T12:00Z"], {"start": "1795262400000"}),
        (["--start", "first"], {"start": "first"}),
    ],
)
def test_options_become_keys(arguments: list[str], expected: dict[str, object]) -> None:
    ran = CliRunner().invoke(probe, arguments)
    assert (ran.exit_code, ran.output.strip()) == (0, repr(expected))


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--concurrency", "many"], ("'many'", "1 to 1,000,000")),
        (["--retry-intervals-ms", "1;2"], ("'1;2'", "whole number")),
        (["--model", "both"], ("'both'", "clustering", "broadcasting")),
        (["--push", "{"], ("'{'", "JSON")),
        (["--push", "[]"], ("'[]'", "JSON object")),
        (["--start", "soon"], ("'soon'", "first, last", "-2h")),
        (["--order-key", "key"], ("'key'", "KEY for the message key, $.key for the field")),
        (["--order-key", "Qid"], ("'Qid'", "QID for the queue, $.Qid for the field")),
    ],
)
def test_what_cannot_be_a_value(arguments: list[str], texts: tuple[str, ...]) -> None:
    ran = CliRunner().invoke(probe, arguments)
    assert ran.exit_code == 2
    assert all(text in ran.output for text in texts), ran.output


@pytest.mark.parametrize("order_key", ["key", "Qid"])
def test_a_server_takes_for_a_path_what_commands_reject(order_key: str) -> None:
    assert SubscriptionDefaults(order_key=order_key).order_key == order_key


def test_keys_may_be_written_as_options() -> None:
    assert {setting_name(text) for text in ("--order-key", "order-key", "order_key")} == {"order_key"}
