"""The options that say when a message is to be delivered: the same for `ddmq send` and `ddmq delay`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from ddmq.cli.moments import parse_moment
from ddmq.cli.values import Whole
from ddmq.moments import age, duration
from ddmq_client.delays import CATCH_UPS, when_of
from ddmq_client.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = ("delay", "at", "cron", "zone", "every", "times", "catch_up")
_KEYWORD = re.compile(r"(?<![-\w])(delay|deliver_at|cron|every|times|catch_up|level)(?!\w)")
_FIRST = [
    click.option("--delay", metavar="DURATION", help="So much later: 90s, 1h30m, 2d, 250ms."),
    click.option(
        "--at",
        metavar="TIME",
        help="At this moment: 2026-11-21T09:00 (local or in --zone), …Z, …+01:00, +2h or epoch milliseconds.",
    ),
]
_REPEATS = [
    click.option(
        "--cron", metavar="FIELDS", help="At each time of five fields: '0 9 * * 1-5' is every weekday at 9."
    ),
    click.option("--zone", help="Time zone of --cron (UTC when not given) or --at, as in Asia/Shanghai."),
    click.option("--every", metavar="DURATION", help="Again and again, so far apart."),
    click.option("--times", type=Whole(1), help="Deliveries in all (beside --cron and --every: each time)."),
    click.option(
        "--catch-up", type=click.Choice(CATCH_UPS), help="What was missed while nothing ran (fire_once)."
    ),
]


def first_options(command: F) -> F:
    """--delay and --at."""
    for option in reversed(_FIRST):
        command = option(command)
    return command


def when_options(command: F) -> F:
    """All of them."""
    for option in reversed(_FIRST + _REPEATS):
        command = option(command)
    return command


def when(given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `Producer.send` that these options mean, {} for none. Raises UsageError."""
    set_ones = {name: value for name, value in given.items() if name in OPTIONS and value is not None}
    zone = zone_of(set_ones.get("zone"))
    found = {name: value for name, value in set_ones.items() if name in ("cron", "times", "catch_up")}
    for name in ("delay", "every"):
        if name in set_ones:
            found[name] = _duration(set_ones[name], f"--{name}")
    if "at" in set_ones:
        found["deliver_at"] = moment_at(set_ones["at"], zone)
    if "cron" in set_ones and zone is not None:
        found["zone"] = set_ones["zone"]
    elif zone is not None and "at" not in set_ones:
        raise click.UsageError("--zone goes with --cron or --at")
    try:
        when_of(**found)
    except OptionError as error:
        raise click.UsageError(_KEYWORD.sub(_option, str(error))) from error
    return found


def _option(keyword: re.Match[str]) -> str:
    return {"deliver_at": "--at", "level": "--delay-level"}.get(
        keyword[0], "--" + keyword[0].replace("_", "-")
    )


def moment_at(text: str, zone: tzinfo | None) -> datetime:
    """Local time where neither the text nor --zone says otherwise. Raises UsageError."""
    if zone is not None:
        try:
            naive = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return naive.replace(tzinfo=zone) if naive.tzinfo is None else naive
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=parse_moment(text, "--at"))


def zone_of(name: str | None) -> tzinfo | None:
    """Raises UsageError for one that this machine does not know."""
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise click.UsageError(
            f"--zone {name!r} is not known; allowed: IANA names, as in Asia/Shanghai or Europe/Berlin"
        ) from error


def shown(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """`2026-11-23 09:00:00+08:00 (in 1 d 3 h)`, in that zone or local time."""
    there = moment.astimezone(zone)
    precise = "milliseconds" if there.microsecond else "seconds"
    away = (moment - now).total_seconds()
    relation = f"in {age(away)}" if away >= 0 else f"{age(-away)} ago"
    return f"{there.isoformat(sep=' ', timespec=precise)} ({relation})"


def _duration(text: str, option: str) -> timedelta:
    try:
        return timedelta(milliseconds=duration(text))
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error
