"""The command line of the long runs, and the folder where each of them works."""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Say = Callable[[str], None]


def command_line(description: str, *, seeded: bool = True, **lengths: int) -> argparse.ArgumentParser:
    """What all of them take; `lengths`: options that say how long it goes on, with their defaults."""
    parser = argparse.ArgumentParser(description=description)
    if seeded:
        parser.add_argument("--seed", type=int, default=int(time.time()))
    for name, length in lengths.items():
        parser.add_argument(f"--{name}", type=int, default=length)
    parser.add_argument(
        "--dir", type=Path, help="where the data lies (default: the system's temporary folder)"
    )
    return parser


def with_boundaries(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """And that servers kill themselves at named boundaries of commits (kit/boundaries.py)."""
    told = "servers kill themselves at named boundaries of commits"
    parser.add_argument("--boundaries", action="store_true", help=told)
    return parser


def with_kafka(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """And `--kafka`: the `engine` that it is asked of."""
    told = "on a Kafka broker, not on the file log"
    parser.add_argument(
        "--kafka", dest="engine", action="store_const", const="kafka", default="file_log", help=told
    )
    return parser


def in_folder(given: argparse.Namespace, name: str, run: Callable[[Path, Say], object]) -> int:
    """The exit code of a run in a folder of its own, which is kept when something was broken."""
    for noisy in ("thrift", "ddmq_client"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # they tell of every failed call
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=given.dir))
    if run(folder, lambda text: print(time.strftime("%H:%M:%S"), text, flush=True)):
        print(f"kept for inspection: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0
