"""Which producer groups may begin no more transactions in a shard: its owner knows, the others are told.

They are told by a setting for each shard (docs/formats-transactions.md), so some more may begin until they
know.
"""

from __future__ import annotations

from collections.abc import Callable

from backend.completion import Completion
from backend.port import Backend
from backend.records import AppendResult, CommitBatch
from ddmq_common.delays.command import decode_full, encode_full
from ddmq_common.errors import DdmqError
from ddmq_common.names import TRANSACTIONS_FULL_PREFIX
from proxy_producer.transactions.held import HeldShard

ALL = ""  # among the groups: every group


class ShardFullness:
    """What one proxy tells, and is told. `deadline()`: of a commit that begins now, monotonic seconds."""

    def __init__(self, backend: Backend, deadline: Callable[[], float]) -> None:
        self._backend = backend
        self._deadline = deadline
        self._told: dict[int, list[str]] = {}

    def said(self, number: int, group: str) -> bool:
        """Whether the shard's owner says that the group may begin no more."""
        told = self._backend.setting(_key(number))
        return told is not None and not {ALL, group}.isdisjoint(decode_full(told))

    def forget(self, number: int) -> None:
        """The shard is not ours any more."""
        self._told.pop(number, None)

    def tell(self, held: HeldShard) -> None:
        """Tell the others, where that has changed."""
        number, groups = held.number, held.core.full_groups()
        told = self._told.get(number)
        if told is None:
            there = self._backend.setting(_key(number))
            told = self._told[number] = [] if there is None else decode_full(there)
        if groups == told:
            return
        self._told[number] = groups
        change = CommitBatch(settings={_key(number): encode_full(groups) if groups else None})

        def told_them(answer: Completion[list[AppendResult]]) -> None:
            if answer.error is not None:
                self.forget(number)  # again at the next look

        try:
            self._backend.commit(change, self._deadline()).then(told_them)
        except DdmqError:
            self.forget(number)


def _key(number: int) -> str:
    return f"{TRANSACTIONS_FULL_PREFIX}{number}"
