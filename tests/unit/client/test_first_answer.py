"""Whether a pull that brings nothing says that its start is wrong."""

from __future__ import annotations

import pytest

from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.errors import PullError
from ddmq_client.notifications import FirstAnswer
from ddmq_client.wire.producing import UNKNOWN_METHOD, ProxyFault

OTHER_SERVICE = ProxyFault(UNKNOWN_METHOD, "unknown method 'pull'")
UNREACHABLE = CallFailed(CallVerdict.NOT_SENT, "cannot connect")


@pytest.mark.parametrize(
    ("trying", "error"), [(False, OTHER_SERVICE), (True, OTHER_SERVICE), (False, UNREACHABLE)]
)
def test_a_wrong_start_raises_whatever_is_under_way(trying: bool, error: Exception) -> None:
    first = FirstAnswer()
    first.failed(error)
    with pytest.raises(PullError, match="no consumer proxy has answered yet"):
        first.check(trying=trying)


def test_what_another_try_may_put_right_waits_for_it() -> None:
    first = FirstAnswer()
    first.check()
    first.failed(UNREACHABLE)
    first.check(trying=True)
    first.check_refusal()


def test_after_an_answer_nothing_is_wrong_with_the_start() -> None:
    first = FirstAnswer()
    first.came = True
    first.failed(OTHER_SERVICE)
    first.check()
