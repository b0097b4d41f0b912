"""Copies all messages of a source: creates the topics at the target, then copies queue by queue, repeatedly.

A topic of the target must be empty, or an earlier run of the same move must have copied into it; any other is
refused, so copies are never mixed with other messages. The topics of delayed messages (names.SCHEDULE_TOPIC,
%DELAY) are created here too, but filled by the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import gevent
from gevent.pool import Pool

from backend.records import (
    CLUSTER_SETTINGS,
    Bounds,
    CommitBatch,
    Durability,
    ProgressDelta,
    QueueRef,
    TopicInfo,
)
from ddmq.move.context import (
    QUEUES_PER_REQUEST,
    MoveContext,
    MoveError,
    request_until_answered,
    views_of,
    wait_for_answer,
)
from ddmq.move.copier import QueueCopier
from ddmq.move.core.scope import AT_THE_END
from ddmq.move.progress import MoveProgress, TopicIncarnations
from ddmq_common.names import DELAY_TOPIC

AT_ONCE = 8  # queues that are copied at the same time: each holds two runs in memory
FOLLOW_S = 0.2  # between two looks at a source that is followed
SHOWN_MAX = 5


class TopicPair(NamedTuple):
    """One topic at the source and at the target. `target` is None if it does not exist there yet."""

    source: TopicInfo
    target: TopicInfo | None


class TopicCopies:
    """Copies the messages of all topics. `copiers`: the copier of each source queue. `pairs`: the topics as
    they were last matched."""

    def __init__(self, context: MoveContext, progress: MoveProgress) -> None:
        self._context = context
        self._progress = progress
        self.copiers: dict[QueueRef, QueueCopier] = {}
        self.pairs: dict[str, TopicPair] = {}

    # --- topics

    def match_topics(self) -> dict[str, TopicPair]:
        """Return the topics of the move as pairs, by name. Raises MoveError for topics that cannot be
        moved."""
        context = self._context
        incarnations, conflicts = self._progress.list_topics(), []
        pairs: dict[str, TopicPair] = {}
        for name, info in sorted(context.source.topics().items()):
            if context.scope.takes_topic(name):
                pair = pairs[name] = TopicPair(info, context.target.topic(name))
                conflict = self._find_conflict(pair, incarnations.get(name))
                conflicts += [] if conflict is None else [conflict]
        if conflicts:
            more = f"; and {len(conflicts) - SHOWN_MAX} more" if len(conflicts) > SHOWN_MAX else ""
            raise MoveError("; ".join(conflicts[:SHOWN_MAX]) + more)
        return pairs

    def _find_conflict(self, pair: TopicPair, recorded: TopicIncarnations | None) -> str | None:
        """Return why the topic cannot be moved; None if it can. `recorded`: the incarnations that an earlier
        run recorded."""
        source, target = pair
        if recorded is not None:
            if recorded == TopicIncarnations(source.incarnation, 0 if target is None else target.incarnation):
                return None
            where = "target" if recorded.source == source.incarnation else "source"
            return (
                f"topic {source.name} was deleted or made anew at the {where} since the move began; "
                "delete it at the target and begin into an empty one, or leave it out with --topics"
            )
        if target is None:
            return None
        if source.name == DELAY_TOPIC and target.queues != source.queues:
            return (
                f"{DELAY_TOPIC} has {target.queues} shards at the target and {source.queues} here, and ids "
                "of delayed messages name theirs: begin the move before the target's servers are started, or "
                f"start them with shards: {source.queues} in delay_service.yaml, over a target that is empty"
            )
        if target.queues > source.queues and source.name not in AT_THE_END:
            return (
                f"topic {source.name} has {target.queues} queues at the target and {source.queues} here; "
                "which queue a key goes to rests on that number: delete it there"
            )
        if source.name in AT_THE_END or self._is_empty(target):
            return None
        return (
            f"topic {source.name} has messages at the target that are no copies: delete it there, or leave "
            "it out with --topics"
        )

    def _is_empty(self, topic: TopicInfo) -> bool:
        return all(bounds is None or bounds.min == bounds.next for bounds in self._bounds_at_target(topic))

    def _bounds_at_target(self, topic: TopicInfo) -> list[Bounds | None]:
        context = self._context
        return request_until_answered(context, lambda: context.target.bounds(topic.refs()))

    def prepare_targets(self) -> None:
        """Create missing topics and queues at the target, and a copier for each source queue that has
        none."""
        self.pairs = self.match_topics()
        fresh: list[tuple[QueueRef, QueueRef]] = []
        for name, pair in self.pairs.items():
            target = self._make_topic(pair)
            self.pairs[name] = pair._replace(target=target)
            if name not in AT_THE_END:
                both = zip(pair.source.refs(), target.refs(), strict=False)
                fresh += [(source, into) for source, into in both if source not in self.copiers]
        self.copiers |= {each.source: each for each in self.copiers_of(fresh)}

    def _make_topic(self, pair: TopicPair) -> TopicInfo:
        source, target = pair
        if target is None:
            target = self._put(replace(self._fit_to_target(source), incarnation=0, writable=True))
        elif target.queues < source.queues:
            target = self._put(replace(target, queues=source.queues))
        if source.name not in self._progress.list_topics():
            self._progress.save_topic(source, target)
        return target

    def _fit_to_target(self, info: TopicInfo) -> TopicInfo:
        """Return the topic with its durability and replication limited to what the target supports."""
        can = self._context.target.capabilities.durability
        if Durability.REPLICATED not in can:
            info = replace(info, replication_factor=None, min_insync=None, retention_ms=None)
        return info if info.durability in can else replace(info, durability=Durability.DURABLE)

    def _put(self, info: TopicInfo) -> TopicInfo:
        context = self._context
        return wait_for_answer(context.target.put_topic(info, context.deadline()))

    def settle_topics(self) -> None:
        """Give the target's topics the settings of the source's. During the copy they had no limits, so that
        every copy was accepted."""
        for name, pair in self.pairs.items():
            target = self._context.target.topic(name)
            if target is not None and name not in AT_THE_END:
                fit = self._fit_to_target(pair.source)
                own = {key: getattr(target, key) for key in CLUSTER_SETTINGS if getattr(fit, key) is None}
                required = replace(fit, incarnation=target.incarnation, queues=target.queues, **own)
                if required != target:
                    self._put(required)

    def copiers_of(self, pairs: Iterable[tuple[QueueRef, QueueRef]]) -> list[QueueCopier]:
        """Return copiers that continue from the recorded progress. The epoch of this run fences all other
        runs."""
        context, copiers = self._context, list[QueueCopier]()
        pairs = list(pairs)
        for at in range(0, len(pairs), QUEUES_PER_REQUEST):
            chunk = pairs[at : at + QUEUES_PER_REQUEST]
            targets = [target for _, target in chunk]
            groups = context.copied_group, context.pure_group
            for group in groups:
                views = views_of(context, context.target, group, targets)
                claims = [
                    ProgressDelta(group, queue, context.epoch, view.generation)
                    for queue, view in zip(targets, views, strict=True)
                ]
                wait_for_answer(context.target.commit(CommitBatch(progress=claims), context.deadline()))
            copied, pure = (views_of(context, context.target, group, targets) for group in groups)
            bounds = self.bounds([source for source, _ in chunk])
            for (source, target), one, other, limits in zip(chunk, copied, pure, bounds, strict=True):
                first = 0 if limits is None else limits.min
                copiers.append(QueueCopier(context, source, target, one, other, first))
        return copiers

    def bounds(self, queues: list[QueueRef]) -> list[Bounds | None]:
        """Read the bounds of queues of the source."""
        context, bounds = self._context, list[Bounds | None]()
        for at in range(0, len(queues), QUEUES_PER_REQUEST):
            chunk = queues[at : at + QUEUES_PER_REQUEST]
            answers: list[Bounds | None] = request_until_answered(
                context, partial(context.source.bounds, chunk)
            )
            bounds += answers
        return bounds

    # --- copying

    def copy_round(self) -> int:
        """Copy every record that exists now; return the number of records."""
        tally = self._context.tally
        before = tally.copied
        queues = list(self.copiers)
        bounds = self.bounds(queues)
        ends = {
            queue: limits.next for queue, limits in zip(queues, bounds, strict=True) if limits is not None
        }
        behind = [queue for queue, end in ends.items() if end > self.copiers[queue].position]
        tally.remaining = sum(ends[queue] - self.copiers[queue].position for queue in behind)
        at_once(lambda queue: self.copiers[queue].copy(ends[queue]), behind)
        return tally.copied - before

    def follow_source(self, stopped: Callable[[], bool]) -> None:
        """Copy new messages, also of new topics and queues, until `stopped` returns True."""
        while not stopped():
            self.prepare_targets()
            if not self.copy_round():
                gevent.sleep(FOLLOW_S)

    def count_remaining(self) -> Mapping[str, int]:
        """Return the number of offsets that are not copied yet, by topic."""
        queues = list(self.copiers)
        counts: dict[str, int] = {}
        for queue, limits in zip(queues, self.bounds(queues), strict=True):
            if limits is not None:
                behind = limits.next - max(self.copiers[queue].position, limits.min)
                counts[queue.topic] = counts.get(queue.topic, 0) + max(behind, 0)
        return counts


def at_once(work: Callable[[QueueRef], object], queues: Iterable[QueueRef]) -> None:
    """Call `work` for each queue, for up to AT_ONCE queues at the same time. Raises the first error after all
    started calls have ended."""
    errors: list[BaseException] = []

    def run_one(queue: QueueRef) -> None:
        if errors:
            return
        try:
            work(queue)
        except BaseException as error:  # also what ends a greenlet: the work was not done
            errors.append(error)

    pool = Pool(AT_ONCE)
    for queue in queues:
        pool.spawn(run_one, queue)
    pool.join()
    if errors:
        raise errors[0]
