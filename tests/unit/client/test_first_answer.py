"""Whether a pull that brings nothing says that its start is wrong."""

from __future__ import annotations

import pytest

from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.errors import PullError
from ddmq_client.notifications import FirstAnswer
from ddmq_client.wire.producing import UNKNOWN_METHOD, ProxyCallError

OTHER_SERVICE = ProxyCallError(UNKNOWN_METHOD, "unknown method 'pull'")
WRONG_SERVER = CallFailed(CallVerdict.WRONG_SERVER, "an HTTP server answers")
UNREACHABLE = CallFailed(CallVerdict.NOT_SENT, "cannot connect")


@pytest.mark.parametrize(
    ("trying", "error"),
    [(False, OTHER_SERVICE), (True, OTHER_SERVICE), (True, WRONG_SERVER), (False, UNREACHABLE)],
)
def test_an_error_raises_unless_an_attempt_in_progress_may_succeed(trying: bool, error: Exception) -> None:
    first = FirstAnswer()
    first.failed(error)
    with pytest.raises(PullError, match="no consumer proxy has answered yet"):
        first.check(trying=trying)


def test_a_temporary_error_waits_for_the_attempt_in_progress() -> None:
    first = FirstAnswer()
    first.check()
    first.failed(UNREACHABLE)
    first.check(trying=True)
    first.check_rejection()


def test_after_an_answer_the_start_is_valid() -> None:
    first = FirstAnswer()
    first.came = True
    first.failed(OTHER_SERVICE)
    first.check()
