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
        self._telling: set[int] = set()

    def said(self, number: int, group: str) -> bool:
        """Whether the shard's owner says that the group may begin no more."""
        told = self._backend.setting(_key(number))
        return told is not None and not {ALL, group}.isdisjoint(decode_full(told))

    def tell(self, held: HeldShard) -> None:
        """Tell the others, where what is said is something else: also what an owner of before has said since,
        which no epoch keeps from it."""
        number, groups = held.number, held.core.full_groups()
        there = self._backend.setting(_key(number))
        if number in self._telling or groups == ([] if there is None else decode_full(there)):
            return
        self._telling.add(number)
        change = CommitBatch(settings={_key(number): encode_full(groups) if groups else None})

        def told_them(_: Completion[list[AppendResult]]) -> None:
            self._telling.discard(number)  # what failed is told at the next look

        try:
            self._backend.commit(change, self._deadline()).then(told_them)
        except DdmqError:
            self._telling.discard(number)


def _key(number: int) -> str:
    return f"{TRANSACTIONS_FULL_PREFIX}{number}"
