"""`ddmq report`: the samples of the proxies as one HTML file, and in short here.

Spark and the charts are the extra `spark`; they are imported only when the report is made.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddmq.cli.output import console, hint, json_option, print_json, print_line
from ddmq.cli.values import FOLDER, Folder, OutputFile
from ddmq.moments import DURATION_ALLOWED, read_duration

if TYPE_CHECKING:
    from metrics_job.report.core.facts import Report
    from metrics_job.report.core.order import OrderPicture

NEEDED = ("pyspark", "pyarrow", "plotly")


@click.command()
@click.option(
    "--samples",
    type=Folder(file_okay=False),
    help="Folder of the sample files (default: where the configuration has them, DATA_DIR/metrics).",
)
@click.option(
    "--out",
    default="ddmq-report.html",
    show_default=True,
    type=OutputFile(),
    help="The HTML file that is written; it needs no other file and no network.",
)
@click.option("--since", metavar="DURATION", help="Report only the last 1h, 7d, … (default: all samples).")
@click.option(
    "--tables",
    type=Folder(file_okay=False),
    help="Where the job keeps its Parquet tables (default: SAMPLES-tables beside the samples); with --no-job "
    "also a URL.",
)
@click.option(
    "--console",
    "console_address",
    metavar="URL",
    default="http://127.0.0.1:9813",
    show_default=True,
    help="Admin port of a server, to whose console the page links; none: no links.",
)
@click.option("--no-job", is_flag=True, help="Use the tables of an earlier run, without running the job.")
@click.option("--data-dir", type=FOLDER, help="As in `ddmq serve` (default: data).")
@click.option("--config", "config_dir", type=FOLDER, help="As in `ddmq serve`.")
@json_option
def report(
    samples: str | None,
    out: Path,
    since: str | None,
    tables: str | None,
    console_address: str,
    no_job: bool,
    data_dir: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """Show how messages flowed, where they waited, what was late, and what needs attention.

    Runs a Spark job on this machine over the sample files that servers write (a laptop is enough), writes one
    HTML file with charts, and prints a summary. docs/report.md explains how to read it.

    \b
    Examples:
      ddmq report --data-dir ./data
      ddmq report --data-dir ./data --since 1h --out last-hour.html
    """
    since_ms = None if since is None else _parse_since(since)
    samples_dir = (
        samples_folder(config_dir, data_dir) if samples is None else _local_path("--samples", samples)
    )
    tables_location: Path | str = tables_folder(samples_dir) if tables is None else tables
    if not no_job and tables is not None:
        tables_location = _local_path("--tables", tables)
    result = make_report(
        samples_dir, tables_location, out, since_ms, with_job=not no_job, config_dir=config_dir,
        console_address=_read_console(console_address),
    )  # fmt: skip
    if as_json:
        from metrics_job.report.core.facts import to_summary

        print_json({**to_summary(result), "html": str(out)})
        return
    print_summary(result)
    print_line(f"the whole report: {out.resolve()}")


def make_report(
    samples: Path,
    tables: Path | str,
    out: Path,
    since_ms: int | None,
    *,
    with_job: bool = True,
    config_dir: Path | None = None,
    kills_ms: Sequence[int] = (),
    dead_letters: Mapping[str, int] | None = None,
    order: OrderPicture | None = None,
    console_address: str = "",
) -> Report:
    """Run the Spark job over the samples that the report needs, and write the HTML file. Raises
    ClickException, DdmqError.

    `kills_ms`: when processes were killed on purpose; `dead_letters`: how many dead letters were caused on
    purpose, by topic; `order`: a picture of the order of keys for the page; `console_address`: the server to
    whose console the page links, as http://HOST:PORT; empty: no links.
    """
    need_packages()
    from metrics_job.report.core.health import Intended
    from metrics_job.report.run import make_tables, read_report, write_page

    now_ms = time.time_ns() // 1_000_000
    if with_job:
        make_tables(partial(_run_job, config_dir), samples, Path(tables), since_ms, now_ms)
    intended = Intended(kills_ms, dead_letters or {})
    result = read_report(tables, since_ms, now_ms, up_to_date=with_job, intended=intended)
    result = dataclasses.replace(result, order=order, console=console_address)
    write_page(result, out, now_ms)
    return result


def _run_job(config_dir: Path | None, samples: Path, tables: Path, from_ms: int, to_ms: int) -> None:
    from metrics_job.batch import run_batch

    hint(f"running the job over {samples}; tables go to {tables}")
    run_batch(samples, tables, from_ms, to_ms, config_dir, recompute=False)


def print_summary(result: Report) -> None:
    """Print the report in short; wide if standard output is not a terminal."""
    from metrics_job.report.terminal import print_report

    print_report(result, console(wide=True))


def need_packages() -> None:
    """Check that the packages for the report are installed. Raises ClickException, which names those to
    install."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the report needs {', '.join(missing)}, not installed here; "
            "in the source tree: pip install '.[spark]'"
        )


def samples_folder(config_dir: Path | None, data_dir: Path | None) -> Path:
    """Return the folder into which a server with this configuration writes its samples. Raises
    ConfigError."""
    from ddmq.server.config import load_folder

    serve = load_folder(config_dir).serve
    return serve.samples.dir or (data_dir or serve.data_dir) / "metrics"


def tables_folder(samples: Path) -> Path:
    """Return the default folder for tables: a folder next to the samples."""
    return samples.with_name(f"{samples.name}-tables")


def _local_path(option: str, folder: str) -> Path:
    if "://" in folder:
        raise click.UsageError(
            f"{option} {folder}: the job of `ddmq report` works on disks of this machine; for a URL run "
            "`python -m metrics_job batch` where Spark reads it, then: ddmq report --no-job --tables URL"
        )
    return Path(folder)


def _read_console(address: str) -> str:
    """Return the address without a trailing slash; empty for `none`."""
    if address == "none":
        return ""
    if not address.startswith(("http://", "https://")):
        raise click.UsageError(f"--console {address!r}: allowed: http://HOST:PORT, https://HOST:PORT, none")
    return address.removesuffix("/console/").rstrip("/")


def _parse_since(since: str) -> int:
    try:
        return time.time_ns() // 1_000_000 - read_duration(since)
    except ValueError as error:
        raise click.UsageError(f"--since {since!r}: allowed: {DURATION_ALLOWED}") from error
