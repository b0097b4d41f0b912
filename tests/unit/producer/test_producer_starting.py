"""While the backend is not there yet every kind of send is rejected, counted, and told why."""

from __future__ import annotations

from typing import Any

import pytest
from producer_rig import Args, FakeCall

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Wire
from proxy_producer.starting import reject_sends

KINDS = ("sendSync", "sendAsync", "sendOneway", "sendDelaySync", "sendBatchSync", "sendBatch")


@pytest.mark.parametrize("method", KINDS)
def test_a_send_is_rejected_with_the_reason_as_it_is_now(method: str) -> None:
    metrics, why = Registry(), ["no broker"]
    handler = reject_sends(lambda: why[0], metrics).handlers[method]
    size = 3 if "Batch" in method else 1
    for reason in ("no broker", "wrong password"):
        why[0] = reason
        call = FakeCall(Args(messages=[object()] * size), 0.0, 200, Wire.COMPACT, method)
        handler(call)
        answers: list[Any] = call.answer if method == "sendBatch" else [call.answer]
        assert len(answers) == (size if method == "sendBatch" else 1)
        assert {each.code for each in answers} == {15}
        assert all(f"the server is starting: {reason}; send it again" in each.msg for each in answers)
    assert metrics.cell(catalogue.SEND_REFUSED, "starting").value == 2 * size
