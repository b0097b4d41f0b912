"""The method ack: stores the offsets that a fetching client has consumed, and then replies true.

Queues that are not assigned to the consumer id are ignored and counted, as are offsets that go backwards. The
reply false asks the client to try again: the call may not have been stored, and storing it again is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.completion import Completion
from backend.records import AppendResult, Bounds, CommitBatch
from ddmq_common.errors import FencedError
from ddmq_common.metrics.catalogue import ACKED
from ddmq_rpc.api import Call
from proxy_consumer.fetches import answers
from proxy_consumer.fetches.group import FetchedGroup
from proxy_consumer.fetches.owned_topic import Position
from proxy_consumer.groups.directory import Directory
from proxy_consumer.runtime import Runtime


class _PositionAck(NamedTuple):
    position: Position
    finished: tuple[int, int]
    generation: int


class Acks:
    """Handles the acks of one proxy. `groups`: the groups that are fetched from, by name."""

    def __init__(self, runtime: Runtime, directory: Directory, groups: Mapping[bytes, FetchedGroup]) -> None:
        self._runtime = runtime
        self._directory = directory
        self._groups = groups
        self._unknown_group = runtime.ignored_cell("", "unknown group")

    def ack(self, call: Call) -> None:
        """Handle a client's RPC call `ack`: it acknowledges fetched messages."""
        result = call.args.result
        group = self._directory.groups.get(result.groupId)
        if group is None:
            self._unknown_group.value += 1
            call.reply_encoded(answers.TRUE[call.wire])
            return
        fetched = self._groups.get(result.groupId)
        if fetched is None:
            self._runtime.ignored_cell(group.name, "unknown queue").value += 1
            call.reply_encoded(answers.TRUE[call.wire])
            return
        positions = self._find_assigned(fetched, result)
        if positions is None:
            call.reply_encoded(answers.FALSE[call.wire])
        elif not positions:
            call.reply_encoded(answers.TRUE[call.wire])
        else:
            queues = [position.queue for position, _ in positions]
            self._runtime.backend.bounds(queues).then(
                lambda bounds: self._store_positions(call, fetched, positions, bounds)
            )

    def _find_assigned(self, fetched: FetchedGroup, result: Any) -> list[tuple[Position, int]] | None:
        """Return the positions of the caller's own queues that the ack names, with offsets; None if one was
        just lost."""
        own = {
            (position.queue.topic.encode(), position.qid.encode()): position
            for position in fetched.positions_of(result.consumerId)
        }
        ignored = 0
        positions: list[tuple[Position, int]] = []
        for topic, offsets in result.offsets.items():
            topic_positions = fetched.topics.get(topic.decode("utf-8", "replace"))
            for qid, offset in offsets.items():
                position = own.get((topic, qid))
                if position is not None:
                    positions.append((position, offset))
                elif topic_positions is not None and topic_positions.lost_lately(
                    qid.decode("utf-8", "replace")
                ):
                    return None
                else:
                    ignored += 1
        if ignored:
            self._runtime.ignored_cell(fetched.group.name, "unknown queue").value += ignored
        return positions

    def _store_positions(
        self,
        call: Call,
        fetched: FetchedGroup,
        positions: list[tuple[Position, int]],
        bounds: Completion[list[Bounds | None]],
    ) -> None:
        if bounds.error is not None:
            call.reply_encoded(answers.FALSE[call.wire])
            return
        consumer = call.args.result.consumerId
        acks: list[_PositionAck] = []
        for (position, offset), limits in zip(positions, bounds.value, strict=True):
            finished = None if limits is None else position.ack(consumer, offset, limits.next)
            if finished is not None:
                acks.append(_PositionAck(position, finished, position.generation))
        late = len(positions) - len(acks)
        if late:
            self._runtime.ignored_cell(fetched.group.name, "late").value += late
        if acks:
            self._commit(call, fetched, acks)
        else:
            call.reply_encoded(answers.TRUE[call.wire])

    def _commit(self, call: Call, fetched: FetchedGroup, acks: list[_PositionAck]) -> None:
        runtime, name = self._runtime, fetched.group.name
        runtime.open_commits += 1
        batch = CommitBatch(progress=[ack.position.build_delta(name, ack.finished) for ack in acks])

        def on_stored(committed: Completion[list[AppendResult]]) -> None:
            runtime.open_commits -= 1
            if committed.error is None:
                self._count_stored(name, acks)
                call.reply_encoded(answers.TRUE[call.wire])
                return
            runtime.progress_failed(committed.error)
            if isinstance(committed.error, FencedError):
                for topic in {ack.position.queue.topic for ack in acks} & fetched.topics.keys():
                    fetched.topics[topic].reread_progress()
            call.reply_encoded(answers.FALSE[call.wire])

        runtime.backend.commit(batch, runtime.commit_deadline()).then(on_stored)

    def _count_stored(self, group: str, acks: list[_PositionAck]) -> None:
        for ack in acks:
            before = ack.position.committed
            ack.position.on_stored(ack.finished, ack.generation)
            finished = ack.finished[1] - (ack.finished[0] if before is None else before)
            self._runtime.metrics.cell(ACKED, group, ack.position.queue.topic).value += max(finished, 0)
