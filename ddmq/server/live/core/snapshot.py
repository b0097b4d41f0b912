"""A snapshot of the server: what every viewer of GET /events gets, built from the shares of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ddmq.server.live.core.series import TOTALS, combine_steps

BEHIND_MAX = 20  # subscriptions in a snapshot
TAIL_S = 60  # seconds of each series in a snapshot
VERSIONS = ("topics", "groups", "keys", "dead_letters", "delays", "retries", "transactions")
DECIMALS = 3


class ProcessShare(msgspec.Struct, frozen=True):
    """The share of one process in a snapshot. `tails`: the values of the last TAIL_S seconds by series, from
    `tails_from_s` on. `findings`: what is wrong at the process, as GET /findings has it. `due_next_hour`: of
    its delayed messages; None: it has no delay service."""

    totals: dict[str, float | None]
    tails_from_s: int
    tails: dict[str, list[float | None]]
    versions: dict[str, int]
    findings: dict[str, Any] = {}
    due_next_hour: int | None = None


class Behind(NamedTuple):
    """The subscriptions that are furthest behind; `rows` None: they are not known. `error`: why they could
    not be read again."""

    rows: list[dict[str, Any]] | None = None
    at_ms: int | None = None
    error: str = ""


def combine_shares(shares: Sequence[ProcessShare]) -> ProcessShare:
    """Combine the shares of all processes into one, with the last TAIL_S seconds that any of them has."""
    end_s = max((_end_of(share) for share in shares), default=0)
    start_s, count = (end_s - TAIL_S, TAIL_S) if end_s else (0, 0)
    totals, tails = {}, {}
    for series in TOTALS:
        totals[series.name] = series.combine_values(share.totals.get(series.name) for share in shares)
        steps = [(share.tails_from_s, share.tails.get(series.name, ())) for share in shares]
        tails[series.name] = combine_steps(series, start_s, count, 1, steps)
    versions = {name: sum(share.versions.get(name, 0) for share in shares) for name in VERSIONS}
    counts = [share.due_next_hour for share in shares if share.due_next_hour is not None]
    return ProcessShare(totals, start_s, tails, versions, due_next_hour=sum(counts) if counts else None)


def _end_of(share: ProcessShare) -> int:
    """Return the time after the last second of a share; 0 if it has no sample yet."""
    length = max(map(len, share.tails.values()), default=0)
    return share.tails_from_s + length if length else 0


def build_snapshot(
    at_ms: int,
    health: Mapping[str, Any] | None,
    share: ProcessShare,
    behind: Behind,
    missing: Mapping[str, str],
    findings: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the snapshot as it is encoded. `missing`: the processes that did not answer."""
    errors = {"behind": behind.error} if behind.error else {}
    return {
        "at_ms": at_ms,
        "health": health,
        "totals": {name: round_value(value) for name, value in share.totals.items()},
        "due_next_hour": share.due_next_hour,
        "behind": behind.rows,
        "behind_at_ms": behind.at_ms,
        "tails": {
            "from_ms": share.tails_from_s * 1000,
            "step_s": 1,
            "values": {name: list(map(round_value, values)) for name, values in share.tails.items()},
        },
        "findings": findings,
        "versions": share.versions,
        "missing": {**missing, **errors},
    }


def round_value(value: float | None) -> float | int | None:
    """Return a number without digits that nobody needs; a whole number as such."""
    if value is None:
        return None
    return int(value) if value == int(value) else round(value, DECIMALS)
