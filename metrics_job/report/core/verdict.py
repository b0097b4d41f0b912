"""The head line's verdict in plain words: what somebody should look at, the most urgent first.

Bad are: a promise missed, a subscription that for minutes does not get through its messages, keys still
blocked at the end, dead letters, processes that vanished or fell silent, samples missing or unreadable,
refused sends above a thousandth (and more than a few). The rest (a retry here, a restart there) is normal
life and stands in the tables only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metrics_job.report.core import words
from metrics_job.report.core.health import SILENT, ProcessFacts, SloFacts
from metrics_job.report.core.material import Material, Row, Waiting
from metrics_job.report.core.totals import Totals

REFUSED_FROM, REFUSED_MIN = 0.001, 10
DEVIATION_FROM = 3.5  # robust z-scores: the usual bound for "not by chance"


class Finding(NamedTuple):
    """One sentence, and the section of the page that has more."""

    bad: bool
    text: str
    section: str


def findings(
    material: Material,
    covered: tuple[int, int] | None,
    totals: Totals,
    slo: list[SloFacts],
    processes: list[ProcessFacts],
) -> list[Finding]:
    """None: all is well."""
    if covered is None:
        return [
            Finding(True, "No samples in this range: nothing ran, or the samples lie elsewhere.", "processes")
        ]
    return [
        *_promises(slo),
        *_waiting(material.waiting),
        *_blocked(material.waiting),
        *_dead(totals),
        *_refused(totals),
        *_processes(processes),
        *_unusual(material.anomalies),
        *_rejects(material.rejects),
    ]


def _promises(slo: list[SloFacts]) -> list[Finding]:
    missed = [row for row in slo if not row.met]
    if not missed:
        return []
    worst = missed[0]
    names = words.listed(sorted({row.name for row in missed}))
    example = (
        f"worst {worst.name} of {words.place(worst.group, worst.topic)}: {words.percent(worst.compliance)} "
        f"good, {words.percent(worst.target)} promised"
    )
    return [Finding(True, f"{words.plural(len(missed), 'promise')} missed ({names}); {example}.", "promises")]


def _waiting(rows: Iterable[Waiting]) -> list[Finding]:
    rows = list(rows)
    stuck, slow = [row for row in rows if row.stuck], [row for row in rows if row.slow]
    found = []
    if stuck:
        found.append(Finding(True, _lag_text(stuck, "not getting fewer at present rates"), "waiting"))
    if slow:
        longest = max(row.time_to_drain_s or 0 for row in slow)
        found.append(Finding(True, _lag_text(slow, f"{words.span(longest)} to drain"), "waiting"))
    return found


def _lag_text(rows: list[Waiting], how: str) -> str:
    worst = max(rows, key=lambda row: row.lag)
    more = f"; {words.plural(len(rows) - 1, 'other subscription')} too" if len(rows) > 1 else ""
    return (
        f"{words.plural(worst.lag, 'message')} waiting for {words.place(worst.group, worst.topic)}, "
        f"the oldest for {words.milliseconds(worst.lag_age_ms)}, {how}{more}."
    )


def _blocked(rows: Iterable[Waiting]) -> list[Finding]:
    blocked = [row for row in rows if row.blocked_keys]
    if not blocked:
        return []
    longest = max(row.blocked_key_age_ms for row in blocked)
    names = words.listed([words.place(row.group, row.topic) for row in blocked])
    keys = words.plural(sum(row.blocked_keys for row in blocked), "order key")
    return [
        Finding(
            True,
            f"{keys} blocked at the end ({names}), the longest for {words.milliseconds(longest)}.",
            "top",
        )
    ]


def _dead(totals: Totals) -> list[Finding]:
    if not totals.dead_lettered:
        return []
    one = totals.dead_lettered == 1
    text = (
        "1 message became a dead letter."
        if one
        else f"{words.count(totals.dead_lettered)} messages became dead letters."
    )
    return [Finding(True, text, "top")]


def _refused(totals: Totals) -> list[Finding]:
    ratio = totals.refused_ratio
    if ratio is None or ratio < REFUSED_FROM or totals.refused < REFUSED_MIN:
        return []
    text = f"{words.plural(totals.refused, 'send')} not stored, {words.percent(ratio)} of all answered."
    return [Finding(True, text, "top")]


def _processes(rows: list[ProcessFacts]) -> list[Finding]:
    found = []
    vanished = [row for row in rows if row.unintended]
    if vanished:
        times = words.plural(sum(row.unintended for row in vanished), "process", "processes")
        names = words.listed([row.name for row in vanished])
        text = (
            f"{times} ended without a word ({names}): killed or crashed. What was counted after the last "
            "sample is in no number here."
        )
        found.append(Finding(True, text, "processes"))
    found += _silent([row for row in rows if row.ended == SILENT])
    missing = [row for row in rows if row.missing]
    if missing:
        files = words.plural(sum(row.missing for row in missing), "sample file")
        text = (
            f"{files} missing ({words.listed([row.name for row in missing])}): the numbers here are too low."
        )
        found.append(Finding(True, text, "processes"))
    return found


def _silent(rows: list[ProcessFacts]) -> list[Finding]:
    if not rows:
        return []
    text = (
        f"Nothing heard of {words.plural(len(rows), 'process', 'processes')} "
        f"({words.listed([row.name for row in rows])}) since {words.when(max(row.last_ms for row in rows))} "
        "UTC, and no last sample: killed, or its samples do not come here any more."
    )
    return [Finding(True, text, "processes")]


def _unusual(rows: Iterable[Row]) -> list[Finding]:
    far = [row for row in rows if abs(row["deviation"]) >= DEVIATION_FROM]
    if not far:
        return []
    first = far[0]
    example = (
        f"{first['metric']} of {words.place(first['group'] or '', first['topic'] or '')} at "
        f"{words.when(first['start'])}: {words.count(first['value'])}, usually {words.count(first['usual'])}"
    )
    return [
        Finding(
            True,
            f"{words.plural(len(far), 'hour')} unlike the same hour of former weeks; {example}.",
            "changes",
        )
    ]


def _rejects(rows: Iterable[Row]) -> list[Finding]:
    lines = sum(int(row["lines"]) for row in rows)
    if not lines:
        return []
    return [Finding(True, f"{words.plural(lines, 'sample line')} not understood and left out.", "rejects")]
