"""Which topics have as many delayed messages waiting as they may, told to the producer proxies.

A command that is stored is kept, whatever it is: who refuses is the producer proxy, with code 15, and it
learns of a full topic by a setting. Every process judges by the shards that it owns, whose share of the
bounds is their share of all shards, and says it for each of them. A topic stays full until a tenth of its
bound is free, so that it does not flap; commands accepted meanwhile (about a second's) come on top of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from backend.completion import Completion
from backend.records import AppendResult, CommitBatch
from ddmq_common.delays.command import decode_full, encode_full
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_FULL_PREFIX
from delay_service.context import DelayServiceContext

log = logging.getLogger("ddmq.delay")
FREE_AGAIN = 0.9  # of its bound: below, a topic takes messages again
TOLD_MAX = 1_000  # topics told of; the fullest


class Quota:
    """Of one delay service."""

    def __init__(self, service: DelayServiceContext) -> None:
        self._service = service
        self._backend = service.backend
        self._config = service.config
        self._full: frozenset[str] = frozenset()
        self._telling = False

    def look(
        self, own: Collection[int], shards: int, pending: Mapping[str, int], sizes: Mapping[str, int]
    ) -> None:
        """Judge what waits in the shards `own` of `shards`, and tell what has changed."""
        share = len(own) / max(shards, 1)
        count_max = self._config.pending_count_max * share
        bytes_max = self._config.pending_bytes_max * share
        use = {
            topic: max(count / count_max, sizes.get(topic, 0) / bytes_max) for topic, count in pending.items()
        }
        known = {topic for number in own for topic in self._told(number)}
        full = [topic for topic, part in use.items() if part >= (FREE_AGAIN if topic in known else 1)]
        full = sorted(sorted(full, key=lambda topic: -use[topic])[:TOLD_MAX])
        self._service.counts.full.value = len(full)
        wanted = {number: full for number in own if self._told(number) != full}
        if wanted and not self._telling:
            self._tell(wanted, full)

    def _told(self, number: int) -> list[str]:
        return decode_full(self._backend.setting(f"{DELAY_FULL_PREFIX}{number}"))

    def _tell(self, wanted: Mapping[int, list[str]], full: list[str]) -> None:
        for topic in sorted(set(full) - self._full):
            log.warning(
                "topic %s has as many delayed messages waiting as it may (pending_count_max %d, "
                "pending_bytes_max %d): new ones are refused with code 15 until a tenth of that is free",
                topic, self._config.pending_count_max, self._config.pending_bytes_max,
            )  # fmt: skip
        self._full, self._telling = frozenset(full), True
        value = encode_full(full) if full else None
        batch = CommitBatch(settings={f"{DELAY_FULL_PREFIX}{number}": value for number in wanted})
        try:
            self._backend.commit(batch, self._service.deadline()).then(self._has_told)
        except DdmqError as error:
            self._not_told(error)

    def _has_told(self, answer: Completion[list[AppendResult]]) -> None:
        self._telling = False
        if answer.error is not None:
            self._not_told(answer.error)

    def _not_told(self, error: Exception) -> None:
        """The next look tries again."""
        self._telling = False
        self._service.counts.failed("quota", error)
