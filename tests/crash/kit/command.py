"""The command line of the long runs, and the folder where each of them works."""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PrintLine = Callable[[str], None]
HELP = {
    "boundaries": "servers kill themselves at named boundaries of commits",
    "kafka": "on a Kafka broker, not on the file log",
    "processes": "each part as its own process",
    "stops": "proxies stand still, too",
    "store_once": "which sends are stored once",
    "seconds": "of sending and faults",
    "proxies": "consumer proxies as processes of their own",
}


def replay_command(module: str, **options: Any) -> str:
    """Return the command that runs a module of tests/crash with these options, without flags that are off."""
    values = {
        name: f"{value:g}" if isinstance(value, float) else f"{value}" for name, value in options.items()
    }
    words = [
        f"--{name}" + f" {values[name]}" * (value is not True) for name, value in options.items() if value
    ]
    return " ".join([f"python -m tests.crash.{module}", *words])


def long_run(doc: str | None, name: str, run: Callable[..., object], **options: Any) -> int:
    """Read the command line, call `run` in a folder of its own with all options, and return the exit code.

    `options` are the defaults by name: a flag has False, a choice has all its values, the default first, and
    `seed=None` is the time. What `run` returns is what was broken; its folder is kept then.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for option, default in options.items():
        flag, help_text = f"--{option.replace('_', '-')}", HELP.get(option)
        if default is False:
            parser.add_argument(flag, action="store_true", help=help_text)
        elif isinstance(default, tuple):
            parser.add_argument(
                flag, type=type(default[0]), choices=default, default=default[0], help=help_text
            )
        else:
            parser.add_argument(flag, type=type(default or 0), default=default, help=help_text)
    parser.add_argument("--dir", type=Path, help="where the data is (default: the temporary folder)")
    arguments = vars(parser.parse_args())
    if "seed" in arguments and arguments["seed"] is None:
        arguments["seed"] = int(time.time())
    for noisy in ("thrift", "ddmq_client"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # they report every failed call
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=arguments.pop("dir")))
    if run(folder, print_line=lambda text: print(time.strftime("%H:%M:%S"), text, flush=True), **arguments):
        print(f"kept for inspection: {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0
