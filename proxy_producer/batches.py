"""Answers of batches: sendBatchSync has one for all messages, sendBatch one for each.

The first fault of a sendBatchSync refuses all of it before anything is stored, and its answer is 0 only if
all messages are stored. In a sendBatch a fault concerns its own message only. In both, the order within a
queue is the order of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.records import AppendResult
from ddmq_client.idl.codes import FAILED_PREFIX, Code
from proxy_producer import wire
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.pending import Destination, PendingSend, result_of


class BatchDestination(Destination):
    """Appends the messages of a batch to their topics and answers sendBatch (`partial`) or sendBatchSync."""

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        stored = send.count_stored(results)
        call, counts, faults = send.call, send.flow.counts, send.faults
        if self.partial:
            for fault in faults.values():
                counts.count_refused(None, fault)
            call.reply(_batch_results(send, results))
        elif faults:
            fault = summarize_faults(faults, send.size, stored)
            counts.count_refused(None, fault, send.size - stored)
            call.reply(wire.refused_result(fault))
        else:
            call.reply_encoded(wire.OK[call.wire])


WHOLE_BATCH = BatchDestination()
PARTIAL_BATCH = BatchDestination(partial=True)


def _batch_results(send: PendingSend, results: Sequence[AppendResult]) -> list[Any]:
    """Return one Result for each message of the call, in their order."""
    answers: list[Any] = [None] * send.size
    for member, record, result in zip(send.members, send.records, results, strict=False):
        answers[member.index] = result_of(member, record, result)
    for index, fault in send.faults.items():
        answers[index] = wire.refused_result(fault)
    return answers


def summarize_faults(faults: Mapping[int, SendRefusal], size: int, stored: int) -> SendRefusal:
    """Combine the refusals of a batch into one: code 12 if some message may be stored, else the first
    refusal."""
    index = min(faults)
    for candidate, fault in faults.items():
        if fault.code == Code.TIMED_OUT:
            index = candidate
            break
    code, reason, text = faults[index]
    detail = text.removeprefix(FAILED_PREFIX).lstrip()
    summary = f"{FAILED_PREFIX} {stored} of {size} messages are stored; message {index}: {detail}"
    return SendRefusal(code, reason, summary)
