"""LevelKeeper: follows the feature level, and raises it when all processes support more."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backend.kafka.commits.commit_queue import CommitQueue
from backend.kafka.coordination.events import LevelRaised
from backend.kafka.coordination.feature_level import (
    CLUSTER_SETTING,
    UNSTATED,
    ClusterRecord,
    find_common_level,
    find_level_error,
    format_cluster_record,
    parse_cluster_record,
    recorded_level,
)
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.kafka.coordination.table import find_address
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.records import CommitBatch

log = logging.getLogger(__name__)
RETRY_S = 1.0  # between two attempts to raise the level
COMMIT_S = 10.0


class LevelKeeper:
    """The feature level as this process has followed it.

    `on_level` is called with each new level, before anything else that the event leads to. MemberWatch calls
    `tick`.
    """

    def __init__(
        self,
        options: KafkaOptions,
        state: KafkaState,
        commits: CommitQueue,
        members: KafkaMemberships,
        on_level: Callable[[int], object],
    ) -> None:
        self._own = options.supported_level
        self._state = state
        self._commits = commits
        self._members = members
        self._on_level = on_level
        self._next_at = 0.0
        self.level = UNSTATED

    def refresh(self) -> None:
        """Take over the level of the table, or the recorded one if no table is known."""
        if not self._state.ready:
            return
        table = self._members.table
        level = recorded_level(self._state.settings, self._own) if table is None else table.level
        if level != self.level:
            log.info("the feature level of this installation is %d", level)
            self.level = level
            self._on_level(level)

    @property
    def error(self) -> str:
        """Say why this process cannot take part, or return ""."""
        if not self._state.ready:
            return ""
        return find_level_error(max(self.level, recorded_level(self._state.settings, self._own)), self._own)

    @property
    def warning(self) -> str:
        """Name the processes that keep the level below what this process supports; "" if there are none."""
        table = self._members.table
        if table is None or table.level >= self._own:
            return ""
        earlier = [
            find_address(table, process)
            for process in table.processes
            if table.levels.get(process, UNSTATED) < self._own
        ]
        if not earlier:
            return ""
        return (
            f"the feature level stays at {table.level} until these processes of an earlier version, or with a"
            f" lower feature_level, have stopped: {', '.join(sorted(earlier))}"
        )

    def tick(self, now: float) -> None:
        """Raise the level if that is this process's task, in two steps: record it, then write the event."""
        table = self._members.table
        if table is None or now < self._next_at:
            return
        if next(iter(table.processes), self._members.name) != self._members.name:
            return
        level = find_common_level(table.processes, table.levels, self._own)
        value = self._state.settings.get(CLUSTER_SETTING)
        if level <= table.level or value is None:
            return
        self._next_at = now + RETRY_S
        record = parse_cluster_record(value)
        if record.level < level:
            self._record(ClusterRecord(record.cluster_id, level), now)
        else:
            self._members.write_event(LevelRaised(level, list(table.processes)))

    def _record(self, record: ClusterRecord, now: float) -> None:
        def on_done() -> None:
            if answer.error is None:
                self._next_at = 0.0
            else:
                log.warning(
                    "feature level %d could not be recorded, retrying: %s", record.level, answer.error
                )

        batch = CommitBatch(settings={CLUSTER_SETTING: format_cluster_record(record)})
        answer = self._commits.commit(batch, now + COMMIT_S)
        answer.then(lambda _: on_done())
