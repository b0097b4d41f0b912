"""What both producers, the blocking and the asyncio one, do before anything goes to a socket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddmq_client.core import frames
from ddmq_client.core.pipeline import HURRY_SHARE, goes_alone
from ddmq_client.core.selectors import placer
from ddmq_client.core.sending import SendJob, result_of
from ddmq_client.core.settings import TIMEOUT_MS_MAX, ProducerSettings, check
from ddmq_client.core.splitter import split
from ddmq_client.errors import InvalidMessageError
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.wire.producing import encode_message

SEND_ONEWAY = b"sendOneway"
Member = tuple[int, bytes]  # index in the application's list, encoded message


class BatchPlan(NamedTuple):
    """A list of messages, cut into requests; messages that cannot be sent have their result already."""

    results: list[SendResult]
    requests: list[list[Member]]

    def fill(self, request: list[Member], results: Sequence[SendResult]) -> None:
        """Put a request's results where its messages stood."""
        for (at, _), result in zip(request, results, strict=True):
            self.results[at] = result


class Outbox:
    """Checks, places and encodes messages; makes jobs."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self._place = placer(settings.selector)
        self._policy = settings.policy()

    def encode(self, message: OutgoingMessage) -> bytes:
        """The message's bytes on the wire; InvalidMessageError where there are none."""
        settings = self.settings
        return encode_message(message, self._place(message), settings.client_id, settings.producer_group)

    def timeout_s(self, timeout_ms: int | None) -> float:
        """Seconds for a call; the producer's own where the call states none."""
        if timeout_ms is None:
            return self.settings.timeout_ms / 1000
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        return timeout_ms / 1000

    def job(self, encoded: Sequence[bytes], deadline: float) -> SendJob:
        """One request's job: sendSync for one message, sendBatch for several."""
        return SendJob(encoded, len(encoded) > 1, deadline, self._policy)

    def plan(self, messages: Iterable[OutgoingMessage]) -> BatchPlan:
        """Encode and cut. Messages that ask for a delay go alone, after the others."""
        results: list[SendResult] = []
        together: list[Member] = []
        alone: list[list[Member]] = []
        for at, message in enumerate(messages):
            results.append(_UNSENT)
            try:
                member = (at, self.encode(message))
            except InvalidMessageError as error:
                results[at] = result_of(error)
                continue
            if goes_alone(message):
                alone.append([member])
            else:
                together.append(member)
        sizes = [len(data) for _, data in together]
        parts = split(sizes, self.settings.batch_bytes, self.settings.batch_messages)
        return BatchPlan(results, [together[part.start : part.stop] for part in parts] + alone)


def hurry_at(now: float, timeout_s: float) -> float:
    """From when on a waiting send goes alone."""
    return now + timeout_s - timeout_s / HURRY_SHARE


def oneway_frame(encoded: bytes, sequence_id: int) -> bytes:
    """A request without answer."""
    head = frames.call_head(SEND_ONEWAY, sequence_id, frames.ONEWAY)
    return frames.framed((head, *frames.one_message_args(encoded, None)))


_UNSENT = SendResult()
