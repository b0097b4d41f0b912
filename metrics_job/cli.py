"""The command line: `python -m metrics_job batch|stream|report|package`, the same under spark-submit."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import EARLIEST_MS, FIRST_YEAR, LAST_YEAR, LATEST_MS

_DIGITS = re.compile(r"-?\d+\Z")


class Moment(click.ParamType[int]):
    """The click type of a day, a time (UTC by default) or epoch milliseconds; the value is converted to epoch
    milliseconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            moment_ms = int(text) if _DIGITS.match(text) else _epoch_ms(datetime.fromisoformat(text))
        except ValueError:
            self.fail(f"{text!r} is no time; write 2026-11-21, 2026-11-21T12:00 (UTC) or epoch milliseconds")
        if not EARLIEST_MS <= moment_ms <= LATEST_MS:
            self.fail(f"{text!r}: allowed: times from {FIRST_YEAR} to {LAST_YEAR}")
        return moment_ms


def _epoch_ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


class Within(click.ParamType[float]):
    """The click type of a number from `low` to `high`."""

    name = "NUMBER"

    def __init__(self, kind: type[float], low: int, high: int) -> None:
        self._kind, self._low, self._high = kind, low, high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = self._kind(str(value))
        except ValueError:
            number = self._low - 1
        if not self._low <= number <= self._high:
            self.fail(f"{value!r}: allowed: {self._low} to {self._high}")
        return number


AMOUNT, COUNT = Within(float, 0, 1_000_000), Within(int, 1, (1 << 31) - 1)
samples_option = click.option(
    "--samples", required=True, metavar="DIR", help="The folder the processes write to; a path or a URL."
)
out_option = click.option("--out", required=True, metavar="DIR", help="Where the tables go; a path or a URL.")
config_option = click.option(
    "--config",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with slo.yaml; without one, built-in objectives hold.",
)


@click.group()
def commands() -> None:
    """Metrics samples into tables, with Spark: rollups, lag, objectives, anomalies (docs/metrics-job.md)."""


@commands.command()
@samples_option
@out_option
@click.option("--from", "from_ms", type=Moment(), help="Begin of the range; its whole UTC day is computed.")
@click.option("--to", "to_ms", type=Moment(), help="End of the range, exclusive; rounded up to whole days.")
@config_option
def batch(samples: str, out: str, from_ms: int | None, to_ms: int | None, config: Path | None) -> None:
    """Compute the tables of whole days, replacing those that are there.

    Without --from and --to: of every day that has samples.
    """
    from metrics_job.batch import run_batch

    days = run_batch(samples, out, from_ms, to_ms, config)
    if days:
        click.echo(f"tables of {len(days)} days, {days[0]} to {days[-1]}, in {out}")
    else:
        click.echo(f"no samples in {samples} in that range; nothing written")


@commands.command()
@samples_option
@out_option
@click.option("--checkpoint", default="", metavar="DIR", help="Default: OUT/stream/checkpoint.")
@click.option("--once", is_flag=True, help="Take what is there, then end.")
@click.option("--every", "every_s", type=AMOUNT, default=60.0, help="Seconds between two batches (60).")
@click.option("--late-hours", type=AMOUNT, default=6.0, help="Lines later than this are refused (6).")
@click.option("--files-max", type=COUNT, default=100_000, help="Of one batch (100000).")
@config_option
@click.pass_context
def stream(ctx: click.Context, /, config: Path | None, **options: Any) -> None:
    """Keep the tables up to date while files arrive (docs/metrics-job-streaming.md)."""
    from metrics_job.stream import Streaming, run_stream

    ctx.exit(run_stream(Streaming(**options), config))


@commands.command()
@click.option("--out", "tables", required=True, metavar="DIR", help="The folder with the tables.")
@click.option("--html", default="ddmq-report.html", show_default=True, help="The page to write.")
@click.option("--from", "from_ms", type=Moment(), help="Begin of what is shown; default: all there is.")
def report(tables: str, html: str, from_ms: int | None) -> None:
    """One page with charts from tables that were made before; `ddmq report` makes the tables, too."""
    from rich.console import Console

    from metrics_job.report.run import read_report, write_page
    from metrics_job.report.terminal import print_report

    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    summary = read_report(tables, from_ms, now_ms)
    write_page(summary, Path(html), now_ms)
    print_report(summary, Console())
    click.echo(f"the page is {html}")


@commands.command("package")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def write_package(file: Path) -> None:
    """Write the .zip that `spark-submit --py-files` gives to the executors of a cluster."""
    from metrics_job.package import write_zip

    click.echo(f"{write_zip(file)} files in {file}; for: spark-submit --py-files {file} …")


def main() -> None:
    """Run the command line. User errors are printed on one line, with exit code 2."""
    try:
        code = commands(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
