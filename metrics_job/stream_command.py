"""`python -m metrics_job stream`: options in, exit code out."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import TypeVar

from pyspark.errors import StreamingQueryException

from metrics_job.session import session
from metrics_job.stream import FILES_MAX, Streaming, run, stop_on_signals
from metrics_job.stream_tables import roll_up

AMOUNT_MAX = 1_000_000  # of seconds and hours
COUNT_MAX = (1 << 31) - 1  # Spark's own
Number = TypeVar("Number", int, float)


def add_stream_options(parser: argparse.ArgumentParser) -> None:
    """The options of docs/metrics-job-streaming.md."""
    parser.add_argument("--samples", required=True, help="folder or URL the servers write samples to")
    parser.add_argument("--out", required=True, help="folder or URL of the tables; of this stream alone")
    parser.add_argument("--checkpoint", default="", help="default: OUT/stream/checkpoint")
    parser.add_argument("--once", action="store_true", help="take what is there, then end")
    parser.add_argument("--every", type=_amount, default=60.0, help="seconds between two batches (60)")
    parser.add_argument(
        "--late-hours", type=_amount, default=6.0, help="lines later than this are refused (6)"
    )
    parser.add_argument("--config", type=Path, help="folder with slo.yaml")
    parser.add_argument("--files-max", type=_count, default=FILES_MAX, help="of one batch (100000)")


def _amount(text: str) -> float:
    return _within(float, text, 0, AMOUNT_MAX)


def _count(text: str) -> int:
    return _within(int, text, 1, COUNT_MAX)


def _within(number: type[Number], text: str, low: int, high: int) -> Number:
    try:
        value = number(text)
    except ValueError:
        value = number(low - 1)
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed: {low} to {high}")
    return value


def stream_command(options: argparse.Namespace) -> int:
    """Run until SIGTERM, SIGINT or, with --once, the last file: 0. 1 when a batch failed."""
    stopping = threading.Event()
    stop_on_signals(stopping)
    what = Streaming(
        options.samples,
        options.out,
        options.checkpoint,
        options.late_hours,
        options.every,
        options.once,
        options.files_max,
    )
    spark = session("ddmq-metrics-stream")
    stop_on_signals(stopping)
    try:
        run(spark, what, roll_up(spark, what.out, options.config), stopping)
    except StreamingQueryException as error:
        print(f"a batch failed and is repeated at the next start: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


def main(arguments: list[str]) -> int:
    """The command with its own parser."""
    parser = argparse.ArgumentParser(prog="python -m metrics_job stream", description=__doc__)
    add_stream_options(parser)
    return stream_command(parser.parse_args(arguments))
