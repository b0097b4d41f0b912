"""The end of the demo: the report of its own run, compared number by number with what its clients counted.

What the servers counted and the report adds up must be what the clients saw. One thing cannot be known: what
the killed server counted after its last sample, half a second at most, died with it. So of the topic that was
sent to when the server was killed, the report may lack as many sends as were answered since that sample, and
may have more by those whose answers were lost in the kill, which may be stored and delivered twice. All
else must be equal.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from ddmq.cli.report import NEEDED, make_report, print_summary, tables_folder
from ddmq.demo.server import Narrator, side_path
from ddmq_common.errors import DdmqError

if TYPE_CHECKING:
    from metrics_job.report.core.facts import Report
    from metrics_job.report.core.order import OrderPicture


PROMISES = """\
objectives:
  "sends stored":
    percent: 99
  "waiting at most 1 m":
    metric: ddmq_queue_wait_us
    at_most_ms: 60000
    percent: 99
"""


@dataclass(frozen=True)
class ClientCounts:
    """The counts of the clients of one topic; `answered_ms` are the wall times of the answers to sends."""

    topic: str
    acknowledged: int
    resends: int
    answered_ms: list[int]
    delivered: int
    finished: int
    failed: int
    dead: int


class Compared(NamedTuple):
    """One number of the report, and the range in which it must be according to the clients' counts."""

    what: str
    reported: int
    counted: int
    low: int
    high: int

    @property
    def is_same(self) -> bool:
        return self.low <= self.reported <= self.high


def report_of_the_run(
    data_dir: Path,
    out: Path,
    counted: list[ClientCounts],
    killed_ms: int,
    picture: OrderPicture | None,
    narrator: Narrator,
) -> bool:
    """Make the report, show it, and compare it with the clients' counts. Returns True if the numbers agree,
    or if Spark is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        lacking = f"{', '.join(missing)} missing; pip install '.[spark]' in the source tree"
        narrator.print_step(f"no report of this run: {lacking}")
        narrator.print_short(f"(no report of this run: {lacking})")
        return True
    narrator.print_step("the report of this run: Spark reads what the servers counted")
    samples = data_dir / "metrics"
    try:
        with _redirect_spark(side_path(data_dir, "spark"), narrator), narrator.quiet_unless_verbose():
            report = make_report(
                samples, tables_folder(samples), out, None, config_dir=_write_promises(data_dir),
                kills_ms=[killed_ms],
                dead_letters={counts.topic: counts.dead for counts in counted if counts.dead},
                order=picture,
            )  # fmt: skip
    except DdmqError as error:
        raise click.ClickException(f"no report of this run: {error}") from error
    rows = compare_counts(report, counted, killed_ms)
    same = all(row.is_same for row in rows)
    if narrator.verbose or not same:
        print_summary(report)
        print_comparison(rows)
    narrator.print_step(f"open it: {out.resolve()}")
    narrator.print_short(f"the report of this run, with charts: {out.resolve()}")
    for finding in report.findings:  # nothing of what was done on purpose: this machine was too slow, say
        narrator.print_short(f"the report found: {finding.text}")
    return same


@contextmanager
def _redirect_spark(log: Path, narrator: Narrator) -> Iterator[None]:
    """Write the warnings of Spark's Java process to a file in the block, unless verbose. They are written to
    descriptor 2 directly."""
    if narrator.verbose:
        yield
        return
    before = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def _write_promises(data_dir: Path) -> Path:
    """Write objectives (slo.yaml) that tolerate the kill, during which messages wait; return their folder."""
    folder = data_dir / "promises"
    folder.mkdir(exist_ok=True)
    (folder / "slo.yaml").write_text(PROMISES, encoding="utf-8")
    return folder


def compare_counts(report: Report, counted: list[ClientCounts], killed_ms: int) -> list[Compared]:
    """Compare every number that both the report and the clients have."""
    vanished_times = [vanished_ms for process in report.processes for vanished_ms in process.vanished_ms]
    last_sample_ms = max(
        (vanished_ms for vanished_ms in vanished_times if vanished_ms <= killed_ms), default=0
    )
    rows = []
    for counts in counted:
        totals = report.topics.get(counts.topic)
        if totals is None:
            return [Compared(f"{counts.topic}: anything", 0, 1, 1, 1)]
        unsampled = sum(
            last_sample_ms <= answered for answered in counts.answered_ms if answered <= killed_ms
        )
        rows += [
            Compared(
                f"{counts.topic}: sent",
                totals.sent,
                counts.acknowledged,
                counts.acknowledged - unsampled,
                counts.acknowledged + counts.resends,
            ),
            Compared(
                f"{counts.topic}: delivered",
                totals.delivered,
                counts.delivered,
                counts.delivered,
                counts.delivered + counts.resends,
            ),
            require_equal(f"{counts.topic}: acknowledged", totals.acked, counts.finished),
            require_equal(f"{counts.topic}: failed", totals.failed, counts.failed),
            require_equal(f"{counts.topic}: dead letters", totals.dead_lettered, counts.dead),
        ]
    return rows


def require_equal(what: str, reported: int, counted: int) -> Compared:
    """Return the comparison of two numbers that must be equal."""
    return Compared(what, reported, counted, counted, counted)


def print_comparison(rows: list[Compared]) -> bool:
    """Print each number of the report beside the clients' count; return True if all agree."""
    for row in rows:
        click.echo(f"  {row.what:<24} {row.reported:>7,} {_describe_difference(row)}")
    same = all(row.is_same for row in rows)
    text = "the report's numbers are those the demo counted" if same else "NOT THE SAME NUMBERS: see above"
    click.echo(f"[demo] {text}")
    return same


def _describe_difference(row: Compared) -> str:
    if row.reported == row.counted:
        return "as counted"
    if not row.is_same:
        return f"BUT COUNTED {row.counted:,}"
    if row.reported < row.counted:
        lost, bound = row.counted - row.reported, row.counted - row.low
        return (
            f"of {row.counted:,} counted: {lost:,} of the {bound:,} answered after the killed server's last "
            "sample died with it"
        )
    return (
        f"and {row.counted:,} counted: {row.reported - row.counted:,} more whose answers the kill prevented"
    )
