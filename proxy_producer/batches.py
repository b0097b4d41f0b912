"""Answers of batches: sendBatchSync has one for all messages, sendBatch one for each.

The first rejection in a sendBatchSync rejects all of it before anything is stored, and its answer is 0 only
if all messages are stored. In a sendBatch a rejection concerns its own message only. In both, the order
within a queue is the order of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.records import AppendResult
from ddmq_client.idl.codes import FAILED_PREFIX, Code
from proxy_producer import wire
from proxy_producer.core.rejections import SendRejection
from proxy_producer.pending import Destination, PendingSend, result_of


class BatchDestination(Destination):
    """Appends the messages of a batch to their topics and answers sendBatch (`partial`) or sendBatchSync."""

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        stored = send.count_stored(results)
        call, counts, rejections = send.call, send.flow.counts, send.rejections
        if self.partial:
            for rejection in rejections.values():
                counts.count_rejected(None, rejection)
            call.reply(_batch_results(send, results))
        elif rejections:
            rejection = summarize_rejections(rejections, send.size, stored)
            counts.count_rejected(None, rejection, send.size - stored)
            call.reply(wire.rejected_result(rejection))
        else:
            call.reply_encoded(wire.OK[call.wire])


COMPLETE_BATCH = BatchDestination()
PARTIAL_BATCH = BatchDestination(partial=True)


def _batch_results(send: PendingSend, results: Sequence[AppendResult]) -> list[Any]:
    """Return one Result for each message of the call, in their order."""
    answers: list[Any] = [None] * send.size
    for member, record, result in zip(send.members, send.records, results, strict=False):
        answers[member.index] = result_of(member, record, result)
    for index, rejection in send.rejections.items():
        answers[index] = wire.rejected_result(rejection)
    return answers


def summarize_rejections(rejections: Mapping[int, SendRejection], size: int, stored: int) -> SendRejection:
    """Combine the rejections of a batch into one: code 12 if some message may be stored, else the first
    rejection."""
    index = min(rejections)
    for candidate, rejection in rejections.items():
        if rejection.code == Code.TIMED_OUT:
            index = candidate
            break
    code, reason, text = rejections[index]
    detail = text.removeprefix(FAILED_PREFIX).lstrip()
    summary = f"{FAILED_PREFIX} {stored} of {size} messages are stored; message {index}: {detail}"
    return SendRejection(code, reason, summary)
