"""A consumer whose pulls are rejected says so again from time to time, and not for each pull."""

from __future__ import annotations

import logging

import pytest

from ddmq_client import LoginError, PullError
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.notifications import REPEAT_S, ConsumerNotifications, PullFailures

CLOSED = CallFailed(CallVerdict.LOST, "connection closed")
REJECTED = LoginError("the login was rejected")


class Reports:
    """The failures of one consumer, what was logged of them, and the errors that on_error got."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "ddmq_client.consumer")
        self._caplog = caplog
        self.errors: list[Exception] = []
        self.notifications = ConsumerNotifications(on_error=self.errors.append)
        self.failures = PullFailures(self.notifications)

    def report(self, error: Exception, now: float, *, repeated: bool = True) -> list[str]:
        """Report a failed pull; return the warnings about it."""
        self._caplog.clear()
        self.failures.report_failure("a:1", error, now, repeated=repeated)
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Reports:
    return Reports(caplog)


def test_a_rejection_after_a_lost_connection_is_reported(reports: Reports) -> None:
    assert reports.report(CLOSED, 0.0, repeated=False) == ["pull from a:1 failed: connection closed"]
    assert reports.report(CLOSED, 0.1) == []
    assert reports.report(REJECTED, 0.2) == ["pull from a:1 failed: the login was rejected"]
    assert reports.errors == [CLOSED, REJECTED]


def test_a_rejection_is_logged_again_once_a_minute(reports: Reports) -> None:
    reports.report(REJECTED, 0.0, repeated=False)
    logged = [now for now in range(1, 301) if reports.report(REJECTED, float(now))]
    assert logged == [60, 120, 180, 240, 300]
    assert REPEAT_S == 60.0
    assert reports.errors == [REJECTED]


def test_all_pullers_of_a_consumer_repeat_one_warning(reports: Reports) -> None:
    other = PullFailures(reports.notifications)
    reports.report(REJECTED, 0.0, repeated=False)
    other.report_failure("b:1", PullError("no such group"), 1.0, repeated=False)
    assert reports.report(REJECTED, 60.0) == []
    assert reports.report(REJECTED, 61.0) == ["pull from a:1 still fails: the login was rejected"]


def test_a_server_that_is_down_is_logged_once(reports: Reports) -> None:
    reports.report(CLOSED, 0.0, repeated=False)
    assert not any(reports.report(CLOSED, float(now)) for now in range(1, 301))


def test_rejections_and_lost_connections_in_turn_are_reported_once(reports: Reports) -> None:
    reports.report(CLOSED, 0.0, repeated=False)
    for now in range(1, 50, 2):
        reports.report(REJECTED, float(now))
        reports.report(CLOSED, now + 1.0)
    assert reports.errors == [CLOSED, REJECTED]


def test_after_a_success_the_next_rejection_is_new(reports: Reports) -> None:
    reports.report(REJECTED, 0.0, repeated=False)
    assert reports.report(REJECTED, 1.0, repeated=False) == ["pull from a:1 failed: the login was rejected"]
