"""Reports topics and identities that have as many delayed messages waiting as they may to the producer
proxies.

A command that is stored is kept, whatever it is: who refuses is the producer proxy, with code 15, and it
learns of a full topic by a setting. Every process judges by the shards that it owns, whose share of the
bounds is their share of all shards, and says it for each of them. A topic stays full until a tenth of its
bound is free, so that it does not flap; commands accepted meanwhile (about a second's) come on top of it.
The same holds for an identity and its quota `pending_delays`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from backend.completion import Completion
from backend.records import AppendResult, CommitBatch
from ddmq_common.delays.command import SENDER_MARK, decode_full, encode_full, mark_sender
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_FULL_PREFIX
from delay_service.context import DelayServiceContext

log = logging.getLogger("ddmq.delay")
REOPEN_SHARE = 0.9  # of its bound: below it, a topic accepts messages again
REPORTED_MAX = 1_000  # topics told of; the fullest


class Quota:
    """Checks whether topics and identities of one delay service have as many waiting messages as they may,
    and reports the full ones.

    `quota_of`: returns the quota of an identity, 0 for none; None: rights are off.
    """

    def __init__(self, service: DelayServiceContext, quota_of: Callable[[str], int] | None = None) -> None:
        self._service = service
        self._quota_of = quota_of
        self._backend = service.backend
        self._config = service.config
        self._full: frozenset[str] = frozenset()
        self._is_reporting = False

    def check_topics(
        self,
        own: Collection[int],
        shards: int,
        pending: Mapping[str, int],
        sizes: Mapping[str, int],
        senders: Mapping[str, int],
    ) -> None:
        """Check which topics and identities have reached their bound of delayed messages, and report changes
        to the producer proxies.

        Only the shards `own`, out of `shards` in all, are considered. `pending` has the number of their
        waiting messages by topic, `sizes` the bytes of these, `senders` the number by identity.
        """
        share = len(own) / max(shards, 1)
        count_max = self._config.pending_count_max * share
        bytes_max = self._config.pending_bytes_max * share
        use = {
            topic: max(count / count_max, sizes.get(topic, 0) / bytes_max) for topic, count in pending.items()
        }
        if self._quota_of is not None:
            for sender, count in senders.items():
                if (quota := self._quota_of(sender)) > 0:
                    use[mark_sender(sender)] = count / (quota * share)
        reported = {topic for number in own for topic in self._reported_topics(number)}
        full = [
            topic
            for topic, share_used in use.items()
            if share_used >= (REOPEN_SHARE if topic in reported else 1)
        ]
        full = sorted(sorted(full, key=lambda topic: -use[topic])[:REPORTED_MAX])
        self._service.counts.full.value = len(full)
        changed = {number: full for number in own if self._reported_topics(number) != full}
        if changed and not self._is_reporting:
            self._report_full(changed, full)

    def _reported_topics(self, number: int) -> list[str]:
        return decode_full(self._backend.setting(f"{DELAY_FULL_PREFIX}{number}"))

    def _report_full(self, changed: Mapping[int, list[str]], full: list[str]) -> None:
        for topic in sorted(set(full) - self._full):
            if topic.startswith(SENDER_MARK):
                log.warning(
                    "identity %s has as many delayed messages waiting as it may (pending_delays in"
                    " security.yaml): new ones are refused with code 15 until a tenth of that is free",
                    topic.removeprefix(SENDER_MARK),
                )
                continue
            log.warning(
                "topic %s has as many delayed messages waiting as it may (pending_count_max %d, "
                "pending_bytes_max %d): new ones are refused with code 15 until a tenth of that is free",
                topic, self._config.pending_count_max, self._config.pending_bytes_max,
            )  # fmt: skip
        self._full, self._is_reporting = frozenset(full), True
        value = encode_full(full) if full else None
        batch = CommitBatch(settings={f"{DELAY_FULL_PREFIX}{number}": value for number in changed})
        try:
            self._backend.commit(batch, self._service.deadline()).then(self._on_reported)
        except DdmqError as error:
            self._on_report_failed(error)

    def _on_reported(self, answer: Completion[list[AppendResult]]) -> None:
        self._is_reporting = False
        if answer.error is not None:
            self._on_report_failed(answer.error)

    def _on_report_failed(self, error: Exception) -> None:
        """Count the failed report; the next check retries it."""
        self._is_reporting = False
        self._service.counts.count_failure("quota", error)
