"""Every rule of findings has a sentence, a command and a page, whatever text its labels are."""

from __future__ import annotations

import re
import shlex
from urllib.parse import unquote

import click
import pytest

from ddmq.cli.root import root
from ddmq_common.findings.conditions import INSTANCE, Condition, OnlyPrometheus
from ddmq_common.findings.rule import (
    PLACEHOLDER,
    SEVERITIES,
    THRESHOLD,
    VALUE,
    FindingRule,
    format_time,
    format_value,
)
from ddmq_common.findings.table import RULES, RULES_BY_NAME

HOSTILE = "-x; rm -rf / # $(id) `id` 'a\" \n [red]%2F/../&group=b"


def labels_of(rule: FindingRule, text: str) -> dict[str, str]:
    return dict.fromkeys(rule.condition.by, text)


def placeholders(text: str) -> set[str]:
    return {match[1] for match in PLACEHOLDER.finditer(text)}


def metrics_in(condition: Condition) -> list[tuple[str, ...]]:
    """The labels of each metric that a condition compares."""
    labels = []
    for field in condition:
        for each in field if isinstance(field, tuple) and not hasattr(field, "_fields") else [field]:
            each = getattr(each, "metric", each)
            if hasattr(each, "labels"):
                labels.append(each.labels)
    return labels


def test_names_are_unique_and_severities_known() -> None:
    assert len(RULES_BY_NAME) == len(RULES)
    assert {rule.severity for rule in RULES} == set(SEVERITIES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_complete(rule: FindingRule) -> None:
    known = set(rule.condition.by)
    assert placeholders(rule.text) <= known | {VALUE, THRESHOLD}
    assert placeholders(rule.command) | placeholders(rule.page) <= known
    assert (THRESHOLD in placeholders(rule.text)) <= (rule.threshold is not None)
    assert rule.page.startswith("/console")
    assert rule.for_s % 60 == 0
    if not isinstance(rule.condition, OnlyPrometheus):
        assert metrics_in(rule.condition)
        for labels in metrics_in(rule.condition):
            assert known - {INSTANCE} <= set(labels)


@pytest.mark.parametrize("text", ["orders", HOSTILE])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_command_is_one_of_ours_with_the_labels_as_they_are(rule: FindingRule, text: str) -> None:
    words = shlex.split(rule.build_command(labels_of(rule, text)))
    assert words[0] == "ddmq"
    command: click.Command = root
    arguments = words[1:]
    while isinstance(command, click.Group):
        _, below, arguments = command.resolve_command(click.Context(command), arguments)
        assert below is not None
        command = below
    parser = command.make_parser(click.Context(command))
    values, rest, _ = parser.parse_args(list(arguments))
    given = [value for value in values.values() if isinstance(value, str)]
    assert given == [text] * len(placeholders(rule.command))
    assert rest == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_page_keeps_its_parts_whatever_a_label_contains(rule: FindingRule) -> None:
    page = rule.build_page(labels_of(rule, HOSTILE))
    assert re.fullmatch(r"[\w/?=&%.~-]+", page)
    assert page.count("/") == rule.page.count("/")
    assert page.count("&") == rule.page.count("&")
    for name in placeholders(rule.page):
        assert unquote(page).count(HOSTILE) == 1, name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_sentence_contains_its_labels_as_they_are(rule: FindingRule) -> None:
    text = rule.build_text(labels_of(rule, "{value} {x"), 2.0)
    assert text.count("{value} {x") == sum(
        match[1] not in (VALUE, THRESHOLD) for match in PLACEHOLDER.finditer(rule.text)
    )


def test_one_is_singular() -> None:
    rule, labels = RULES_BY_NAME["DdmqDeadLetters"], {"group": "g", "topic": "t"}
    assert rule.build_text(labels, 1.0) == "1 message of t went to the dead letters of g"
    assert rule.build_text(labels, 1200.0) == "1,200 messages of t went to the dead letters of g"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (236, "ms", "236 ms"),
        (600_000, "ms", "10 min"),
        (250_000, "us", "250 ms"),
        (0.0123, "share", "1.23 %"),
        (1, "rejected", "client sends"),
        (2, "rejected", "all writes"),
        (2 << 30, "bytes", "2 GiB"),
        (12, "bytes", "12 bytes"),
        (0.25, "", "0.25"),
        (5_000_001, "", "5,000,001"),
    ],
)
def test_values_have_units(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (59.6, "59.6 s"), (60, "1 min"), (3_905, "1 h 5 min"), (90_000, "1 d 1 h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
