"""Processes that state the same address are found, and one that replaces another is not."""

from __future__ import annotations

import logging

import pytest

from backend.kafka.coordination.events import Died, Joined
from backend.kafka.coordination.shared_addresses import CONFIRM_S, SharedAddresses
from backend.kafka.coordination.table import TableState
from backend.port import Sharing

LOOPBACK = "127.0.0.1:9713"


def table_of(**addresses: str) -> TableState:
    table = TableState(1)
    for process, address in addresses.items():
        table.apply(Joined(process, 1, "g", "orders", Sharing.AVERAGELY, None, address, "", 1, 2), 0)
    return table


def checked(*tables: TableState, own: str = "a") -> SharedAddresses:
    """One look at each, as far apart as they are."""
    found = SharedAddresses()
    for number, table in enumerate(tables):
        found.check(table, own, number * CONFIRM_S)
    return found


def test_an_address_of_two_is_an_error_once(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK, c="h:9713")
    found = checked(table, table, table, table)
    assert found.confirmed == (LOOPBACK,)
    assert LOOPBACK in found.health_warning
    [line] = caplog.records
    assert (line.levelno, LOOPBACK in line.getMessage()) == (logging.ERROR, True)
    assert "advertise" in line.getMessage()


def test_it_is_a_warning_of_every_process_but_no_error_of_others(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK, c="h:9713")
    assert checked(table, table, own="c").confirmed == (LOOPBACK,)
    assert caplog.records == []


def test_one_that_replaces_another_shares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK)
    found = SharedAddresses()
    found.check(table, "a", 0)
    assert found.health_warning == "", "b may be dead already"
    table.apply(Died("b", "a"), 3)
    found.check(table, "a", CONFIRM_S)
    assert (found.health_warning, caplog.records) == ("", [])


def test_members_without_an_address_share_none() -> None:
    table = table_of(a="", b="")
    assert checked(table, table).confirmed == ()


def test_it_is_over_when_one_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    wrong, right = table_of(a=LOOPBACK, b=LOOPBACK), table_of(a="h:1", b="h:2")
    assert checked(wrong, wrong, right).health_warning == ""
    assert len(caplog.records) == 1
