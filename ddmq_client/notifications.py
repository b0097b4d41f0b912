"""Notify an application of late results, failing pulls and rejections at the start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ddmq_client.callables import check_function, check_result
from ddmq_client.core.acks import UnappliedResult
from ddmq_client.errors import LoginError, PullError, SubscriptionError
from ddmq_client.printable import printable
from ddmq_client.received import LateResult, message_position
from ddmq_client.wire.consuming import is_permanent

_log = logging.getLogger("ddmq_client.consumer")
REPEAT_S = 60.0  # between the warnings about rejected pulls of one consumer
OnLate = Callable[[LateResult], object]
OnError = Callable[[Exception], object]


class ConsumerNotifications:
    """Calls the application's functions for late results and errors, from the consumer's activities."""

    def __init__(self, on_late: OnLate | None = None, on_error: OnError | None = None) -> None:
        check_function("on_late", on_late, argument="a LateResult")
        check_function("on_error", on_error, argument="the error")
        self._on_late = on_late
        self._on_error = on_error
        self._noticed: set[str] = set()
        self._repeat_at = 0.0  # when the next repeated rejection is logged

    def report_late(self, late: Sequence[UnappliedResult], lost: Sequence[UnappliedResult]) -> None:
        """Report results that did not count, and leases that ended during handling."""
        for each in (*late[:1], *lost[:1]):
            what = "a result came too late" if each in late else "a lease ended while its message was handled"
            _log.warning(
                "%s: %s of group %s (and %d more); others get the message, too",
                what, printable(message_position(each.origin.topic, each.origin.queue, each.offset)),
                printable(each.origin.group),
                len(late) + len(lost) - 1,
            )  # fmt: skip
        for each in late if self._on_late is not None else ():
            self._call("on_late", self._on_late, LateResult(*each.origin, each.offset, each.finished))

    def report_pull_error(self, proxy: str, error: Exception, now: float) -> None:
        """Report the first of some failed pulls, or the first rejection among them. `now`: monotonic
        seconds."""
        _log.warning("pull from %s failed: %s", proxy, error)
        self._repeat_at = now + REPEAT_S
        self._call("on_error", self._on_error, error)

    def repeat_pull_error(self, proxy: str, error: Exception, now: float) -> None:
        """Log a further failed pull: a rejection as a warning once a minute, because waiting does not help
        against it."""
        level = logging.DEBUG
        if isinstance(error, PullError) and now >= self._repeat_at:
            level, self._repeat_at = logging.WARNING, now + REPEAT_S
        _log.log(level, "pull from %s still fails: %s", proxy, error)

    def log_notice(self, proxy: str, text: str) -> None:
        """Log a warning of a proxy, each text once."""
        text = printable(text)
        if text and text not in self._noticed and len(self._noticed) < 1_000:
            self._noticed.add(text)
            _log.warning("%s says: %s", proxy, text)

    @staticmethod
    def _call(name: str, function: Callable[..., object] | None, argument: object) -> None:
        if function is None:
            return
        try:
            check_result(name, function(argument), ends=False)
        except Exception:
            _log.exception("the application's function raised")


class PullFailures:
    """Reports the failed pulls of one puller: the first after a success, and the first that is rejected. When
    a token is revoked, the connection is closed first, and only the next pull is rejected."""

    def __init__(self, notifications: ConsumerNotifications) -> None:
        self._notifications = notifications
        self._was_rejected = False

    def report_failure(self, proxy: str, error: Exception, now: float, *, repeated: bool) -> None:
        """Report a failed pull. `repeated`: the pull before it failed, too. `now`: monotonic seconds."""
        is_rejected = isinstance(error, PullError)
        if repeated and (self._was_rejected or not is_rejected):
            self._notifications.repeat_pull_error(proxy, error, now)
        else:
            self._notifications.report_pull_error(proxy, error, now)
        self._was_rejected = is_rejected or (repeated and self._was_rejected)


class FirstAnswer:
    """Whether any proxy has answered a pull yet, and if not, why.

    A wrong address or name shows at the start.
    """

    def __init__(self) -> None:
        self.came = False
        self.failure: BaseException | None = None

    def failed(self, error: BaseException) -> None:
        """Record a pull that failed."""
        self.failure = error

    def check(self, trying: bool = False) -> None:
        """Raise PullError if a pull has failed and no proxy has answered any.

        `trying`: another pull is in progress, so that only errors count which it cannot resolve.
        """
        if self.came or self.failure is None or (trying and not is_permanent(self.failure)):
            return
        if isinstance(self.failure, LoginError):
            raise LoginError(self.failure.text, None, self.failure.proxy)
        kind = SubscriptionError if isinstance(self.failure, SubscriptionError) else PullError
        raise kind(f"no consumer proxy has answered yet: {str(self.failure) or repr(self.failure)}")

    def check_rejection(self) -> None:
        """Raise PullError if the first pulls were rejected permanently, or if the server is not a consumer
        proxy.

        A server that cannot be reached raises nothing: it may be restarting.
        """
        self.check(trying=True)
