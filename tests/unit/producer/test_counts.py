"""What counts as a send that was not stored, and what does not."""

from __future__ import annotations

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from proxy_producer.core.rejections import SendRejection
from proxy_producer.counts import SendCounts


def test_a_rejected_cancel_is_no_send() -> None:
    metrics = Registry()
    counts = SendCounts(metrics)
    counts.count_rejected_change(SendRejection(30, "delay id", "no such id"))
    assert catalogue.SENDS.name not in metrics.snapshot() or not metrics.snapshot()[catalogue.SENDS.name]
    assert metrics.cell(catalogue.DELAY_OUTCOMES, "refused").value == 1
    assert metrics.cell(catalogue.SEND_REFUSED, "delay id").value == 1
