"""Connections are bounded by what the limit of open files leaves."""

from __future__ import annotations

import logging
import resource

import pytest

from ddmq.check_result import OK, WARNING
from ddmq.cli.doctor import open_files
from ddmq.server.config import Configuration
from ddmq.server.process.open_files import OpenFilesShare, limits_within, share_of_limit
from ddmq_rpc.traffic import RpcLimits


@pytest.mark.parametrize(
    ("limit", "servers", "expected"),
    [
        (300, 2, OpenFilesShare(75, 150)),
        (1_024, 2, OpenFilesShare(256, 512)),
        (20_000, 2, OpenFilesShare(8_976, 2_048)),
        (20_000, 1, OpenFilesShare(10_000, 2_048)),
        (1 << 30, 2, OpenFilesShare(10_000, 2_048)),
        (64, 2, OpenFilesShare(1, 128)),
    ],
)
def test_what_clients_are_left(limit: int, servers: int, expected: OpenFilesShare) -> None:
    assert share_of_limit(limit, servers, 10_000) == expected


def limited(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))


@pytest.mark.parametrize(
    ("configured", "level", "key"), [(True, logging.WARNING, "configured"), (False, logging.INFO, "default")]
)
def test_a_low_limit_lowers_the_bound_and_warns_only_of_a_configured_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, configured: bool, level: int, key: str
) -> None:
    limited(monkeypatch, 300)
    with caplog.at_level(logging.INFO):
        assert limits_within(RpcLimits(), 2, configured=configured).connections_max == 75
    (record,) = caplog.records
    facts = record.__dict__
    assert record.levelno == level
    assert (facts["connections_max"], facts[key], facts["open_files"]) == (75, 10_000, 300)


def test_a_high_limit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 100_000)
    limits = RpcLimits()
    assert limits_within(limits, 2, configured=True) is limits


def test_doctor_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 4_096)
    result = open_files(Configuration())
    assert result.status == WARNING
    assert "1024 connections of each Thrift server instead of 10000" in result.summary
    assert "ulimit -Hn 22048" in result.remedy
    limited(monkeypatch, 100_000)
    assert open_files(Configuration()).status == OK
