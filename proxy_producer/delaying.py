"""DelayingBatch: messages that are stored all or none; each may ask for a delay.

A batch of sendBatch knows no delays. This is what the messages of a transaction and those of an
acknowledgement have in common; the two differ in what they store, and in how they are answered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call
from proxy_producer.batches import PendingBatch
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.delay.context import DelayContext
from proxy_producer.flow import Flow
from proxy_producer.pending import DelayLevels
from proxy_producer.wire import BatchMember, SendRequest


class DelayingBatch(PendingBatch):
    """State of one call. `asked`: by place, what those asked for that wait."""

    __slots__ = ("_asked", "_commands", "_levels")

    def __init__(
        self,
        flow: Flow,
        delay: DelayContext,
        levels: DelayLevels,
        call: Call,
        deadline: float,
        members: list[BatchMember],
        asked: Mapping[int, SendRequest],
    ) -> None:
        super().__init__(flow, delay.relays, call, deadline, len(members), members, {}, each=False)
        self._asked = asked
        self._levels = levels
        self._commands = delay.commands

    def _check_modes(self) -> None:
        """Topics that did not exist when the messages were checked may have come with other rules."""
        for member in self.members:
            topic = self.topics[member.record.topic]
            plain = member.place not in self._asked
            fault = topic.write_fault()
            fault = fault or (topic.plain_fault(member.chronos) if plain else topic.delayed_fault())
            if fault is not None:
                self._drop_topic(topic.name, fault)
                return

    def release(self) -> None:
        """No limit holds it any more: the internal topics that it needs, then the store."""
        requests = self._asked.values()
        if not self._levels.topic.ready and any(request.level for request in requests):
            self._levels.topic.when_ready(self._topic_ready)
        elif not self._commands.ready and any(request.command is not None for request in requests):
            self._commands.when_ready(self._topic_ready)
        else:
            self._store()

    def _topic_ready(self, fault: SendRefusal | None) -> None:
        if self.answered:
            return
        if fault is None:
            self.release()
        else:
            self._refuse_unsent(fault)

    def _refuse_unsent(self, fault: SendRefusal) -> None:
        self._fail_all(fault)
        self._finish_unsent()

    @abstractmethod
    def _store(self) -> None:
        """Everything that it needs is there."""

    def _choose_queues(self) -> None:
        """As a batch does: one queue for all of a topic that mind none."""
        turns: dict[str, int] = {}
        for _, record, _, partition_id, hash_id, _ in self.members:
            topic = self.topics[record.topic]
            turn = turns.get(record.topic)
            if turn is None:
                topic.turn = turn = turns[record.topic] = topic.turn + 1
            key = record.key if topic.by_key else b""
            record.queue_id = choose(partition_id, hash_id, topic.queues, turn, key)
