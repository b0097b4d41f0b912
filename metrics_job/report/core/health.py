"""Promises kept or not, processes with their restarts and gaps, and the head line's verdict on all of it.

The verdict says in plain words what somebody should look at, the most urgent first. Bad are: a promise
missed, a subscription that for minutes does not get through its messages, keys still blocked at the end, dead
letters, processes that vanished or fell silent, samples missing or unreadable, refused sends above a
thousandth (and more than a few). The rest (a retry here, a restart there) is normal life and stands in the
tables only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddmq_common.metrics.catalogue import DEAD_LETTERS
from metrics_job.report.core import behind, words
from metrics_job.report.core.material import Counted, Material, Row, Totals, Waiting, added

VANISHED = "vanished"
STOPPED = "last"
RUNNING = "running"
SILENT = "silent"
SILENT_AFTER_MS = 120_000  # as metrics_job.rollups.processes judges one date
SILENT_AFTER_INTERVALS = 3
SILENT_AFTER_MAX_MS = 3_720_000


@dataclass(frozen=True, slots=True)
class SloFacts:
    """One objective at one place over the days of the span."""

    name: str
    topic: str
    group: str
    target: float
    good: int
    total: int
    days: int
    days_missed: list[str]  # the newest first
    days_unjudged: int = 0  # on which it was missed by too few to judge
    compliance_missed: float | None = None  # of the newest day on which it was missed

    @property
    def compliance(self) -> float | None:
        return self.good / self.total if self.total else None

    @property
    def met(self) -> bool:
        return not self.days_missed

    @property
    def shown_compliance(self) -> str:
        """The share over all days, and that of the newest missed day where the whole is good enough."""
        whole = words.percent(self.compliance)
        if self.met or (self.compliance or 0.0) < self.target:
            return whole
        return f"{whole}, but {words.percent(self.compliance_missed)} on {self.days_missed[0]}"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process under its name; each start is an instance of its own."""

    name: str
    first_ms: int
    last_ms: int
    starts: int
    vanished_ms: list[int]  # when instances that ended without saying so were last seen
    missing: int  # sample files that should be there
    duplicates: int
    longest_gap_s: float  # in which none of its instances counted, between two in which one did
    clock_steps: int
    ended: str  # how its last instance stands: last (it stopped), vanished, running, silent
    intended: int = 0  # of those that vanished: killed on purpose

    @property
    def unintended(self) -> int:
        return len(self.vanished_ms) - self.intended

    @property
    def vanished(self) -> int:
        return len(self.vanished_ms)

    @property
    def restarts(self) -> int:
        return self.starts - 1


def slos(rows: Iterable[Row]) -> list[SloFacts]:
    """In their order: missed ones first, the furthest from its target first."""
    return [
        SloFacts(
            row["slo"],
            row["topic"],
            row["group"],
            target=float(row["target"]),
            good=int(row["good"]),
            total=int(row["total"]),
            days=int(row["days"]),
            days_missed=list(row["days_missed"]),
            days_unjudged=int(row["unjudged"]),
            compliance_missed=row["missed_compliance"],
        )
        for row in rows
    ]


def processes(
    rows: Iterable[Row], sampled_ms: int | None = None, kills_ms: Sequence[int] = ()
) -> list[ProcessFacts]:
    """By name. `sampled_ms`: until when the rows hold everything that was written; None: as far as they go.
    `kills_ms`: when somebody killed one on purpose; each excuses one that was heard shortly before.

    A row judges its own date, which may have ended too soon to tell: here `running` is what nobody has
    outlived by long. `silent` is one of those that were the last to be heard, but too long before
    `sampled_ms`: they were killed all together, or their samples do not come any more.
    """
    by: dict[str, list[Row]] = {}
    newest_ms = 0
    for row in rows:
        by.setdefault(row["process"], []).append(row)
        newest_ms = max(newest_ms, row["last_seen"])
    if sampled_ms is None:
        sampled_ms = newest_ms
    newest_ms = min(newest_ms, sampled_ms)  # a clock that runs ahead outlives nobody
    return _excused([_process(name, by[name], newest_ms, sampled_ms) for name in sorted(by)], kills_ms)


def _excused(found: list[ProcessFacts], kills_ms: Sequence[int]) -> list[ProcessFacts]:
    for kill_ms in kills_ms:
        near = [
            (kill_ms - seen, place)
            for place, row in enumerate(found)
            for seen in row.vanished_ms
            if 0 <= kill_ms - seen <= SILENT_AFTER_MS and row.unintended
        ]
        if near:
            place = min(near)[1]
            found[place] = replace(found[place], intended=found[place].intended + 1)
    return found


def _process(name: str, rows: list[Row], newest_ms: int, sampled_ms: int) -> ProcessFacts:
    ends: dict[str, Row] = {}  # the last row of each instance says how it ended
    for row in sorted(rows, key=lambda row: int(row["last_seen"])):
        ends[row["instance"]] = row
    latest = list(ends.values())[-1]
    state = VANISHED if _vanished(latest, ends.values(), newest_ms) else latest["ended"]
    if state == RUNNING and _outlived(latest, sampled_ms):
        state = SILENT
    return ProcessFacts(
        name,
        first_ms=min(row["first_seen"] for row in rows),
        last_ms=max(row["last_seen"] for row in rows),
        starts=len(ends),
        vanished_ms=[row["last_seen"] for row in ends.values() if _vanished(row, ends.values(), newest_ms)],
        missing=sum(int(row["missing"] or 0) for row in rows),
        duplicates=sum(int(row["duplicates"] or 0) for row in rows),
        longest_gap_s=max(_down_s(rows), *(float(row["longest_gap_s"] or 0) for row in rows)),
        clock_steps=sum(int(row.get("clock_steps") or 0) for row in rows),
        ended=state,
    )


def _down_s(rows: Iterable[Row]) -> float:
    """The longest time between two rows: from the end of one instance to the start of the next."""
    longest_ms, until_ms = 0, None
    for row in sorted(rows, key=lambda row: int(row["first_seen"])):
        if until_ms is not None:
            longest_ms = max(longest_ms, row["first_seen"] - until_ms)
        until_ms = max(until_ms or 0, row["last_seen"])
    return longest_ms / 1000


def _vanished(row: Row, all_of_name: Iterable[Row], newest_ms: int) -> bool:
    """It never said that it stops, and: said so, started again under its name, or outlived by others."""
    if row["ended"] == STOPPED:
        return False
    again = any(other is not row and other["first_seen"] >= row["last_seen"] for other in all_of_name)
    return again or row["ended"] == VANISHED or _outlived(row, newest_ms)


def _outlived(row: Row, until_ms: int) -> bool:
    """Too long silent at that time for its intervals; None: not known yet, or tables of an older job."""
    interval_s = row.get("interval_s")
    patience_ms = float(SILENT_AFTER_MAX_MS)
    if interval_s is not None:
        patience_ms = max(SILENT_AFTER_MS, SILENT_AFTER_INTERVALS * interval_s * 1000)
    return bool(until_ms - row["last_seen"] > patience_ms)


REFUSED_FROM, REFUSED_MIN = 0.001, 10


class Intended(NamedTuple):
    """Actions that somebody took on purpose, so that they are no findings."""

    kills_ms: Sequence[int] = ()  # when processes were killed; each excuses one that was heard shortly before
    dead_letters: Mapping[str, int] = {}  # how many, by topic


NOTHING_INTENDED = Intended()


class Finding(NamedTuple):
    """One sentence, and the section of the page that has more."""

    text: str
    section: str


def findings(
    material: Material,
    covered: tuple[int, int] | None,
    totals: Totals,
    slo: list[SloFacts],
    processes: list[ProcessFacts],
    intended: Intended,
) -> list[Finding]:
    """None: all is well."""
    if covered is None:
        return [Finding("No samples in this range: nothing ran, or the samples lie elsewhere.", "processes")]
    return [
        *_promises([row for row in slo if not row.met], material.tallies.promises_missed),
        *_waiting(material.waiting, covered[1]),
        *_blocked([row for row in material.waiting if row.blocked_keys], covered[1]),
        *_dead(unintended_dead(material.now.counters, intended)),
        *_refused(totals),
        *_processes(processes),
        *_left_out(material.tallies.starts_left_out),
        *_unusual(material.anomalies, material.tallies.anomalies),
        *_rejects(material.tallies.rejected_lines),
    ]


def _promises(listed: list[SloFacts], missed: int) -> Iterator[Finding]:
    if listed:
        worst, names = listed[0], words.listed(sorted({row.name for row in listed}))
        yield Finding(
            f"{words.plural(missed, 'promise')} missed ({names}); worst {worst.name} of "
            f"{words.place(worst.group, worst.topic)}: {worst.shown_compliance} good, "
            f"{words.percent(worst.target)} promised.",
            "promises",
        )


def _waiting(rows: Sequence[Waiting], end_ms: int) -> Iterator[Finding]:
    stuck, slow = [row for row in rows if row.stuck], [row for row in rows if row.slow]
    if stuck:
        yield _lag(stuck, "not getting fewer at present rates", end_ms)
    if slow:
        yield _lag(slow, f"{words.span(max(row.time_to_drain_s or 0 for row in slow))} to drain", end_ms)


def _lag(rows: list[Waiting], how: str, end_ms: int) -> Finding:
    worst = max(rows, key=lambda row: row.lag)
    how = how if worst.consumed else behind.UNCONSUMED
    how = behind.add_time(how, worst, end_ms)
    more = f"; {words.plural(len(rows) - 1, 'other subscription')} too" if len(rows) > 1 else ""
    return Finding(
        f"{words.plural(worst.lag, 'message')} waiting for {words.place(worst.group, worst.topic)}, "
        f"the oldest for {words.milliseconds(worst.lag_age_ms)}, {how}{more}.",
        "waiting",
    )


def _blocked(rows: list[Waiting], end_ms: int) -> Iterator[Finding]:
    if rows:
        names = words.listed(
            [behind.add_time(words.place(row.group, row.topic), row, end_ms) for row in rows]
        )
        keys = words.plural(sum(row.blocked_keys for row in rows), "order key")
        longest = words.milliseconds(max(row.blocked_key_age_ms for row in rows))
        yield Finding(f"{keys} blocked at the end ({names}), the longest for {longest}.", "top")


def intended_remarks(
    counters: Sequence[Counted], rows: Iterable[ProcessFacts], intended: Intended
) -> Iterator[str]:
    """Say what was done on purpose and is therefore no finding."""
    killed = sum(row.intended for row in rows)
    dead = round(sum(row.total for row in counters if row.metric == DEAD_LETTERS.name))
    dead -= unintended_dead(counters, intended)
    actions = [f"{words.plural(killed, 'process', 'processes')} killed"] if killed else []
    actions += [f"{words.plural(dead, 'message')} made a dead letter"] if dead == 1 else []
    actions += [f"{words.plural(dead, 'message')} made dead letters"] if dead > 1 else []
    if actions:
        yield f"On purpose: {', '.join(actions)}."


def unintended_dead(counters: Iterable[Counted], intended: Intended) -> int:
    """Dead letters that nobody made on purpose."""
    dead = added((row for row in counters if row.metric == DEAD_LETTERS.name), lambda row: row.topic)
    return round(sum(max(0.0, count - intended.dead_letters.get(topic, 0)) for topic, count in dead.items()))


def _dead(count: int) -> Iterator[Finding]:
    if count:
        became = "became a dead letter" if count == 1 else "became dead letters"
        yield Finding(f"{words.plural(count, 'message')} {became}.", "top")


def _refused(totals: Totals) -> Iterator[Finding]:
    """Answers of a proxy that stops are none: the client goes to another one."""
    ratio = totals.refused_ratio or 0.0
    if ratio >= REFUSED_FROM and totals.failed_sends >= REFUSED_MIN:
        sends = words.plural(totals.failed_sends, "send")
        yield Finding(f"{sends} not stored, {words.percent(ratio)} of all answered.", "top")


def _processes(rows: list[ProcessFacts]) -> Iterator[Finding]:
    vanished = [row for row in rows if row.unintended]
    silent = [row for row in rows if row.ended == SILENT]
    missing = [row for row in rows if row.missing]
    if vanished:
        times = words.plural(sum(row.unintended for row in vanished), "process", "processes")
        yield Finding(
            f"{times} ended without a word ({_names(vanished)}): killed or crashed. What was counted after "
            "the last sample is in no number here.",
            "processes",
        )
    if silent:
        yield Finding(
            f"Nothing heard of {words.plural(len(silent), 'process', 'processes')} ({_names(silent)}) since "
            f"{words.when(max(row.last_ms for row in silent))} UTC, and no last sample: killed, or its "
            "samples do not come here any more.",
            "processes",
        )
    if missing:
        files = words.plural(sum(row.missing for row in missing), "sample file")
        yield Finding(f"{files} missing ({_names(missing)}): the numbers here are too low.", "processes")


def _names(rows: list[ProcessFacts]) -> str:
    return words.listed([row.name for row in rows])


def _left_out(starts: int) -> Iterator[Finding]:
    if starts:
        yield Finding(
            f"{words.plural(starts, 'older start')} of processes left out: too many for one report, so "
            "nothing is known of how they ended; a shorter --since tells.",
            "processes",
        )


def _unusual(listed: Sequence[Row], count: int) -> Iterator[Finding]:
    if listed:
        first = listed[0]
        yield Finding(
            f"{words.plural(count, 'hour')} unlike the same hour of former weeks; {first['metric']} of "
            f"{words.place(first['group'] or '', first['topic'] or '')} at {words.when(first['start'])}: "
            f"{words.count(first['value'])}, usually {words.count(first['usual'])}.",
            "changes",
        )


def _rejects(lines: int) -> Iterator[Finding]:
    if lines:
        yield Finding(f"{words.plural(lines, 'sample line')} not understood and left out.", "rejects")
