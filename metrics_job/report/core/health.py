"""Judge promises and processes, and list the findings of the report's verdict.

The findings name what an operator should look at, the most urgent first: a missed promise, a subscription
whose oldest message is old at the end, keys still blocked at the end, dead letters, refused sends, processes
that vanished or fell silent, and missing or unreadable samples. Everything else (a retry, a restart) is
normal and is shown in the tables only.

A finding that an alert has, too, has the name and the threshold of its rule (ddmq_common/findings). Samples
do not tell for how long a condition has held, so the durations of the rules are not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

from ddmq_common.findings.conditions import NotConsumed
from ddmq_common.findings.rule import CRITICAL, INFO, WARNING, FindingRule
from ddmq_common.findings.table import RULES_BY_NAME
from ddmq_common.metrics.catalogue import DEAD_LETTERS
from metrics_job.report.core import behind, words
from metrics_job.report.core.material import Counted, Material, Row, Totals, Waiting, add_totals, by_topic

VANISHED = "vanished"
STOPPED = "last"
RUNNING = "running"
SILENT = "silent"
SILENT_AFTER_MS = 120_000  # as metrics_job.rollups.processes judges one date
SILENT_AFTER_INTERVALS = 3
SILENT_AFTER_MAX_MS = 3_720_000


@dataclass(frozen=True, slots=True)
class SloFacts:
    """The results of one objective for one topic and group, over the days of the time range."""

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
    def is_met(self) -> bool:
        return not self.days_missed

    @property
    def shown_compliance(self) -> str:
        """Return the compliance over all days as text; if that is good enough, also that of the newest missed
        day."""
        text = words.format_percent(self.compliance)
        if self.is_met or (self.compliance or 0.0) < self.target:
            return text
        return f"{text}, but {words.format_percent(self.compliance_missed)} on {self.days_missed[0]}"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The state of one process, identified by its name. Each of its starts is an instance."""

    name: str
    first_ms: int
    last_ms: int
    starts: int
    vanished_ms: list[int]  # when instances that ended without saying so were last seen
    missing: int  # sample files that should be there
    duplicates: int
    longest_gap_s: float  # in which none of its instances counted, between two in which one did
    clock_steps: int
    ended: str  # the state of its last instance: last (it stopped), vanished, running, silent
    intended: int = 0  # of those that vanished: killed on purpose

    @property
    def unintended_count(self) -> int:
        return len(self.vanished_ms) - self.intended

    @property
    def vanished_count(self) -> int:
        return len(self.vanished_ms)

    @property
    def restarts(self) -> int:
        return self.starts - 1


def to_slo_facts(rows: Iterable[Row]) -> list[SloFacts]:
    """Convert rows of objectives, which are sorted: missed ones first, the furthest from its target
    first."""
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


def to_process_facts(
    rows: Iterable[Row], sampled_ms: int | None = None, kills_ms: Sequence[int] = ()
) -> list[ProcessFacts]:
    """Determine the state of each process, sorted by name.

    `sampled_ms`: until when the rows are complete; None: until the last one. `kills_ms`: when a process was
    killed on purpose; each of these excuses one process that sent a sample shortly before.

    A stored row was judged on its own date, perhaps too early. Here, `running` means that no other process
    sent samples long after it; `silent` means that it was among the last to send samples, but too long before
    `sampled_ms`: all were killed together, or their samples no longer arrive.
    """
    by: dict[str, list[Row]] = {}
    newest_ms = 0
    for row in rows:
        by.setdefault(row["process"], []).append(row)
        newest_ms = max(newest_ms, row["last_seen"])
    if sampled_ms is None:
        sampled_ms = newest_ms
    newest_ms = min(newest_ms, sampled_ms)  # a clock that runs ahead outlives nobody
    return _excuse_kills(
        [_judge_process(name, by[name], newest_ms, sampled_ms) for name in sorted(by)], kills_ms
    )


def _excuse_kills(rows: list[ProcessFacts], kills_ms: Sequence[int]) -> list[ProcessFacts]:
    for kill_ms in kills_ms:
        near = [
            (kill_ms - vanished_at_ms, index)
            for index, row in enumerate(rows)
            for vanished_at_ms in row.vanished_ms
            if 0 <= kill_ms - vanished_at_ms <= SILENT_AFTER_MS and row.unintended_count
        ]
        if near:
            index = min(near)[1]
            rows[index] = replace(rows[index], intended=rows[index].intended + 1)
    return rows


def _judge_process(name: str, rows: list[Row], newest_ms: int, sampled_ms: int) -> ProcessFacts:
    ends: dict[str, Row] = {}  # the last row of each instance says how it ended
    for row in sorted(rows, key=lambda row: int(row["last_seen"])):
        ends[row["instance"]] = row
    latest = list(ends.values())[-1]
    state = VANISHED if _has_vanished(latest, ends.values(), newest_ms) else latest["ended"]
    if state == RUNNING and _is_outlived(latest, sampled_ms):
        state = SILENT
    return ProcessFacts(
        name,
        first_ms=min(row["first_seen"] for row in rows),
        last_ms=max(row["last_seen"] for row in rows),
        starts=len(ends),
        vanished_ms=[
            row["last_seen"] for row in ends.values() if _has_vanished(row, ends.values(), newest_ms)
        ],
        missing=sum(int(row["missing"] or 0) for row in rows),
        duplicates=sum(int(row["duplicates"] or 0) for row in rows),
        longest_gap_s=max(_longest_down_s(rows), *(float(row["longest_gap_s"] or 0) for row in rows)),
        clock_steps=sum(int(row.get("clock_steps") or 0) for row in rows),
        ended=state,
    )


def _longest_down_s(rows: Iterable[Row]) -> float:
    """Return the longest gap between two rows in seconds: from the end of one instance to the start of the
    next.
    """
    longest_ms, until_ms = 0, None
    for row in sorted(rows, key=lambda row: int(row["first_seen"])):
        if until_ms is not None:
            longest_ms = max(longest_ms, row["first_seen"] - until_ms)
        until_ms = max(until_ms or 0, row["last_seen"])
    return longest_ms / 1000


def _has_vanished(row: Row, all_of_name: Iterable[Row], newest_ms: int) -> bool:
    """Return whether an instance vanished: without a last sample it was marked so, was restarted, or is
    silent for too long.
    """
    if row["ended"] == STOPPED:
        return False
    was_restarted = any(other is not row and other["first_seen"] >= row["last_seen"] for other in all_of_name)
    return was_restarted or row["ended"] == VANISHED or _is_outlived(row, newest_ms)


def _is_outlived(row: Row, until_ms: int) -> bool:
    """Return whether an instance has been silent at `until_ms` for longer than its intervals allow.

    An interval of None is unknown so far, or the tables are from an older job.
    """
    interval_s = row.get("interval_s")
    patience_ms = float(SILENT_AFTER_MAX_MS)
    if interval_s is not None:
        patience_ms = max(SILENT_AFTER_MS, SILENT_AFTER_INTERVALS * interval_s * 1000)
    return bool(until_ms - row["last_seen"] > patience_ms)


REFUSED_MIN = 10  # sends of a topic; fewer are no finding, whatever their share is
LAG_OLD, NOBODY_CONSUMES, KEY_BLOCKED, DEAD_LETTERS_GROW, SENDS_FAIL, PROCESS_DOWN = (
    RULES_BY_NAME[name]
    for name in (
        "DdmqLagOld", "DdmqNobodyConsumes", "DdmqKeyBlocked", "DdmqDeadLetters", "DdmqSendsFail",
        "DdmqProcessDown",
    )
)  # fmt: skip


class Intended(NamedTuple):
    """Deliberate actions, such as kills in a test. The report does not list them as findings."""

    kills_ms: Sequence[int] = ()  # kills of processes; each excuses one that sent samples shortly before
    dead_letters: Mapping[str, int] = {}  # how many, by topic


NOTHING_INTENDED = Intended()


class Finding(NamedTuple):
    """One finding as a sentence, and the page section with details. `rule`: the name of its alert; empty if
    it has none. `page`: the console's page. `weight`: the severity without a rule."""

    text: str
    section: str
    rule: str = ""
    page: str = ""
    weight: str = WARNING

    @property
    def severity(self) -> str:
        """Return critical, warning or info: that of its alert, if there is one."""
        return RULES_BY_NAME[self.rule].severity if self.rule else self.weight

    @property
    def shown_text(self) -> str:
        return f"{self.text} ({self.rule})" if self.rule else self.text


def console_page(*segments: str) -> str:
    """Return the path of a page of the console."""
    return "/console/" + "/".join(quote(segment, safe="") for segment in segments)


def list_findings(
    material: Material,
    covered: tuple[int, int] | None,
    slo: list[SloFacts],
    processes: list[ProcessFacts],
    intended: Intended,
) -> list[Finding]:
    """List the findings, the most urgent first. An empty list means that all is well."""
    if covered is None:
        return [
            Finding(
                "No samples in this range: nothing ran, or the samples lie elsewhere.",
                "processes",
                weight=CRITICAL,
            )
        ]
    return [
        *_promise_findings([row for row in slo if not row.is_met], material.tallies.promises_missed),
        *_waiting_findings(material.waiting, covered[1]),
        *_blocked_findings(material.waiting, covered[1]),
        *_dead_letter_findings(unintended_dead(material.now.counters, intended)),
        *_rejection_findings(by_topic(material.now.counters)),
        *_process_findings(processes),
        *_left_out_findings(material.tallies.starts_left_out),
        *_anomaly_findings(material.anomalies, material.tallies.anomalies),
        *_reject_findings(material.tallies.rejected_lines),
    ]


def _promise_findings(listed: list[SloFacts], missed: int) -> Iterator[Finding]:
    if listed:
        worst, names = listed[0], words.list_names(sorted({row.name for row in listed}))
        yield Finding(
            f"{words.format_plural(missed, 'promise')} missed ({names}); worst {worst.name} of "
            f"{words.name_subscription(worst.group, worst.topic)}: {worst.shown_compliance} good, "
            f"{words.format_percent(worst.target)} promised.",
            "promises",
            page=console_page("groups", worst.group) if worst.group else console_page("topics", worst.topic),
        )


def _waiting_findings(rows: Sequence[Waiting], end_ms: int) -> Iterator[Finding]:
    rows = [row for row in rows if row.lag and not row.paused]
    old = [row for row in rows if row.consumed and is_above(LAG_OLD, row.lag_age_ms)]
    stuck, others = [row for row in old if row.is_stuck], [row for row in old if not row.is_stuck]
    unconsumed = [row for row in rows if not row.consumed and row.lag_age_ms > _unconsumed_ms()]
    if unconsumed:
        yield _lag_finding(unconsumed, behind.UNCONSUMED, end_ms, NOBODY_CONSUMES)
    if stuck:
        yield _lag_finding(stuck, "not getting fewer at present rates", end_ms, LAG_OLD)
    if others:
        drain_s = max(row.time_to_drain_s or 0 for row in others)
        outlook = f"{words.format_duration(drain_s)} to drain" if drain_s else "getting fewer"
        yield _lag_finding(others, outlook, end_ms, LAG_OLD)


def is_above(rule: FindingRule, value: float) -> bool:
    """Return whether a value is above the threshold of a rule."""
    return rule.threshold is not None and value > rule.threshold


def _unconsumed_ms() -> float:
    """Return the age of the oldest message from which a subscription without consumers is a finding."""
    assert isinstance(NOBODY_CONSUMES.condition, NotConsumed)
    return NOBODY_CONSUMES.condition.window_s * 1000


def _lag_finding(rows: list[Waiting], how: str, end_ms: int, rule: FindingRule) -> Finding:
    worst = max(rows, key=lambda row: row.lag)
    how = behind.add_time(how, worst, end_ms)
    more = f"; {words.format_plural(len(rows) - 1, 'other subscription')} too" if len(rows) > 1 else ""
    messages, subscription = (
        words.format_plural(worst.lag, "message"),
        words.name_subscription(worst.group, worst.topic),
    )
    return Finding(
        f"{messages} waiting for {subscription}, "
        f"the oldest for {words.format_ms(worst.lag_age_ms)}, {how}{more}.",
        "waiting",
        rule.name,
        console_page("groups", worst.group),
    )


def _blocked_findings(waiting: Sequence[Waiting], end_ms: int) -> Iterator[Finding]:
    rows = [
        row
        for row in waiting
        if row.blocked_keys and not row.paused and is_above(KEY_BLOCKED, row.blocked_key_age_ms)
    ]
    if rows:
        names = words.list_names(
            [behind.add_time(words.name_subscription(row.group, row.topic), row, end_ms) for row in rows]
        )
        keys = words.format_plural(sum(row.blocked_keys for row in rows), "order key")
        longest = words.format_ms(max(row.blocked_key_age_ms for row in rows))
        text = f"{keys} blocked at the end ({names}), the longest for {longest}."
        page = f"/console/keys?group={quote(rows[0].group, safe='')}"
        yield Finding(text, "top", KEY_BLOCKED.name, page)


def intended_remarks(
    counters: Sequence[Counted], rows: Iterable[ProcessFacts], intended: Intended
) -> Iterator[str]:
    """Yield sentences about deliberate actions; these are not findings."""
    killed = sum(row.intended for row in rows)
    dead = round(sum(row.total for row in counters if row.metric == DEAD_LETTERS.name))
    dead -= unintended_dead(counters, intended)
    actions = [f"{words.format_plural(killed, 'process', 'processes')} killed"] if killed else []
    actions += [f"{words.format_plural(dead, 'message')} made a dead letter"] if dead == 1 else []
    actions += [f"{words.format_plural(dead, 'message')} made dead letters"] if dead > 1 else []
    if actions:
        yield f"On purpose: {', '.join(actions)}."


def unintended_dead(counters: Iterable[Counted], intended: Intended) -> int:
    """Return the number of dead letters that were not caused on purpose."""
    dead = add_totals((row for row in counters if row.metric == DEAD_LETTERS.name), lambda row: row.topic)
    return round(sum(max(0.0, count - intended.dead_letters.get(topic, 0)) for topic, count in dead.items()))


def _dead_letter_findings(count: int) -> Iterator[Finding]:
    if count:
        became = "became a dead letter" if count == 1 else "became dead letters"
        text = f"{words.format_plural(count, 'message')} {became}."
        yield Finding(text, "top", DEAD_LETTERS_GROW.name, console_page("dead-letters"))


def _rejection_findings(topics: Mapping[str, Totals]) -> Iterator[Finding]:
    """Yield findings about refused sends, except those of stopping proxies, as clients then use another
    one."""
    failing = [
        (topic, totals)
        for topic, totals in topics.items()
        if totals.failed_sends >= REFUSED_MIN and is_above(SENDS_FAIL, totals.refused_ratio or 0.0)
    ]
    if failing:
        topic, worst = max(failing, key=lambda row: row[1].failed_sends)
        sends = words.format_plural(worst.failed_sends, "send")
        more = f"; {words.format_plural(len(failing) - 1, 'other topic')} too" if len(failing) > 1 else ""
        share = words.format_percent(worst.refused_ratio)
        text = f"{sends} to {topic} not stored, {share} of all answered{more}."
        yield Finding(text, "top", SENDS_FAIL.name, console_page("topics", topic))


def _process_findings(rows: list[ProcessFacts]) -> Iterator[Finding]:
    vanished = [row for row in rows if row.unintended_count]
    silent = [row for row in rows if row.ended == SILENT]
    missing = [row for row in rows if row.missing]
    if vanished:
        times = words.format_plural(sum(row.unintended_count for row in vanished), "process", "processes")
        yield Finding(
            f"{times} ended without a word ({_list_names(vanished)}): killed or crashed. What was counted "
            "after the last sample is in no number here.",
            "processes",
            PROCESS_DOWN.name,
            console_page("system"),
        )
    if silent:
        count = words.format_plural(len(silent), "process", "processes")
        last_time = words.format_time(max(row.last_ms for row in silent))
        yield Finding(
            f"Nothing heard of {count} ({_list_names(silent)}) since {last_time} UTC, and no last sample: "
            "killed, or its samples do not come here any more.",
            "processes",
            PROCESS_DOWN.name,
            console_page("system"),
        )
    if missing:
        files = words.format_plural(sum(row.missing for row in missing), "sample file")
        text = f"{files} missing ({_list_names(missing)}): the numbers here are too low."
        yield Finding(text, "processes", weight=INFO)


def _list_names(rows: list[ProcessFacts]) -> str:
    return words.list_names([row.name for row in rows])


def _left_out_findings(starts: int) -> Iterator[Finding]:
    if starts:
        yield Finding(
            f"{words.format_plural(starts, 'older start')} of processes left out: too many for one report, "
            "so nothing is known of how they ended; a shorter --since tells.",
            "processes",
            weight=INFO,
        )


def _anomaly_findings(listed: Sequence[Row], count: int) -> Iterator[Finding]:
    if listed:
        first = listed[0]
        hours = words.format_plural(count, "hour")
        subscription = words.name_subscription(first["group"] or "", first["topic"] or "")
        yield Finding(
            f"{hours} unlike the same hour of former weeks; {first['metric']} of {subscription} at "
            f"{words.format_time(first['start'])}: "
            f"{words.format_count(first['value'])}, usually {words.format_count(first['usual'])}.",
            "changes",
            weight=INFO,
        )


def _reject_findings(lines: int) -> Iterator[Finding]:
    if lines:
        yield Finding(
            f"{words.format_plural(lines, 'sample line')} not understood and left out.",
            "rejects",
            weight=INFO,
        )
