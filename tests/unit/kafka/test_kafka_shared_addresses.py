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
    addresses = SharedAddresses()
    for number, table in enumerate(tables):
        addresses.check(table, own, number * CONFIRM_S)
    return addresses


def test_an_address_of_two_is_an_error_once(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK, c="h:9713")
    addresses = checked(table, table, table, table)
    assert addresses.confirmed == (LOOPBACK,)
    assert LOOPBACK in addresses.health_warning
    [line] = caplog.records
    assert (line.levelno, LOOPBACK in line.getMessage()) == (logging.ERROR, True)
    assert "advertise" in line.getMessage()


def test_it_is_a_warning_of_every_process_but_no_error_of_others(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK, c="h:9713")
    assert checked(table, table, own="c").confirmed == (LOOPBACK,)
    assert caplog.records == []


def test_one_that_replaces_another_shares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(a=LOOPBACK, b=LOOPBACK)
    addresses = SharedAddresses()
    addresses.check(table, "a", 0)
    assert addresses.health_warning == "", "b may be dead already"
    table.apply(Died("b", "a"), 3)
    addresses.check(table, "a", CONFIRM_S)
    assert (addresses.health_warning, caplog.records) == ("", [])


def test_members_without_an_address_share_none() -> None:
    table = table_of(a="", b="")
    assert checked(table, table).confirmed == ()


def test_it_is_over_when_one_is_corrected(caplog: pytest.LogCaptureFixture) -> None:
    same, distinct = table_of(a=LOOPBACK, b=LOOPBACK), table_of(a="h:1", b="h:2")
    assert checked(same, same, distinct).health_warning == ""
    assert len(caplog.records) == 1
