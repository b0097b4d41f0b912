"""Shared by `ddmq send` and `ddmq delay`: due times, the client of the proxy, and the messages to people."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import click

from ddmq.address import ADDRESS, PRODUCER, HostPort
from ddmq.cli.admin_client import AdminClient, UnknownResourceError, admin_address, find_admin_port_hint
from ddmq.cli.options import combine_options
from ddmq.cli.output import count_queues, hint, print_json, print_line
from ddmq.cli.values import Integer, check_host, parse_moment
from ddmq.moments import format_age, read_duration
from ddmq_client import (
    CancelOutcome,
    ClientError,
    DelayResult,
    DelayStatus,
    InvalidMessageError,
    LoginError,
    OutgoingMessage,
    Producer,
    SendError,
)
from ddmq_client.delays import CATCH_UPS, when_of
from ddmq_client.errors import OptionError

OPTIONS = ("delay", "at", "cron", "zone", "every", "times", "catch_up")
_KEYWORD = re.compile(r"(?<![-\w])(delay|deliver_at|cron|every|times|catch_up|level)(?!\w)")
_ARGUMENT_IS = re.compile(r"^(delay|deliver_at|cron|every|times|catch_up|level)(?= is )")
first_options = combine_options(
    click.option("--delay", metavar="DURATION", help="Deliver after this time: 90s, 1h30m, 2d, 250ms."),
    click.option(
        "--at",
        metavar="TIME",
        help="Deliver at this time: 2026-11-21T09:00 (local or in --zone), …Z, …+01:00, +2h or epoch "
        "milliseconds.",
    ),
)
when_options = combine_options(
    first_options,
    click.option(
        "--cron",
        metavar="FIELDS",
        help="Deliver at each time of a cron schedule: '0 9 * * 1-5' is every weekday at 9.",
    ),
    click.option(
        "--zone", help="Time zone of --cron (default: UTC) or of --at (default: local), as in Asia/Shanghai."
    ),
    click.option("--every", metavar="DURATION", help="Deliver again and again with this interval."),
    click.option(
        "--times",
        type=Integer(1),
        help="Stop after so many deliveries; with both --cron and --every: so many at each time of the cron.",
    ),
    click.option(
        "--catch-up",
        type=click.Choice(CATCH_UPS),
        help="How to treat deliveries missed while no service ran (default: fire_once).",
    ),
)
producer_option = click.option(
    "--producer", type=ADDRESS, default=str(PRODUCER), show_default=True, envvar="DDMQ_PRODUCER",
    help="Producer proxy (or set DDMQ_PRODUCER).",
)  # fmt: skip
timeout_option = click.option(
    "--timeout-ms", default=10_000, show_default=True, type=Integer(1), help="How long one request may take."
)
PATIENCE_S = 1.0  # then people are told that the first request has no answer yet
HELP = "`ddmq serve` starts a server; --producer HOST:PORT names another"
SHOWN_MAX = 20  # results that are told one by one
ADMIN_TIMEOUT_S = 1.0  # what is told by the way is not waited for longer


def read_timing(options: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `Producer.send` for the timing options; {} if none was given. Raises
    UsageError."""
    timing_options = {name: value for name, value in options.items() if name in OPTIONS and value is not None}
    zone = zone_of(timing_options.get("zone"))
    arguments = {
        name: value for name, value in timing_options.items() if name in ("cron", "times", "catch_up")
    }
    for name in ("delay", "every"):
        if name in timing_options:
            arguments[name] = _parse_duration(timing_options[name], f"--{name}")
    if "at" in timing_options:
        arguments["deliver_at"] = moment_at(timing_options["at"], zone)
    if "cron" in timing_options and zone is not None:
        arguments["zone"] = timing_options["zone"]
    elif zone is not None and "at" not in timing_options:
        raise click.UsageError("--zone goes with --cron or --at")
    try:
        when_of(**arguments)
    except OptionError as error:
        raise click.UsageError(_KEYWORD.sub(_option_of, str(error))) from error
    return arguments


def in_options(error: ClientError) -> str:
    """Return the text of a producer's error with names of arguments replaced by those of command-line
    options."""
    return _ARGUMENT_IS.sub(_option_of, str(error))


def _option_of(keyword: re.Match[str]) -> str:
    return {"deliver_at": "--at", "level": "--delay-level"}.get(
        keyword[0], "--" + keyword[0].replace("_", "-")
    )


def moment_at(text: str, zone: tzinfo | None) -> datetime:
    """Parse --at; local time unless the text or --zone has another zone. Raises UsageError."""
    if zone is not None:
        try:
            naive = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return naive.replace(tzinfo=zone) if naive.tzinfo is None else naive
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=parse_moment(text, "--at"))


def zone_of(name: str | None) -> tzinfo | None:
    """Return the time zone of that name. Raises UsageError if this machine does not know it."""
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise click.UsageError(
            f"--zone {name!r} is not known; allowed: IANA names, as in Asia/Shanghai or Europe/Berlin"
        ) from error


def format_due(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """Format a due time in that zone or local time, as `2026-11-23 09:00:00+08:00 (in 1 d 3 h)`."""
    there = moment.astimezone(zone)
    precise = "milliseconds" if there.microsecond else "seconds"
    away = (moment - now).total_seconds()
    relation = f"in {format_age(away)}" if away >= 0 else f"{format_age(-away)} ago"
    return f"{there.isoformat(sep=' ', timespec=precise)} ({relation})"


def _parse_duration(text: str, option: str) -> timedelta:
    try:
        return timedelta(milliseconds=read_duration(text))
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


class Patience:
    """Prints why a request takes long: no proxy answers (and what may help), or why a proxy rejects a send
    that is tried again.

    One object serves a whole command. It prints each of the two at most once, and nothing if `quiet` (for
    programs).
    """

    def __init__(self, producer: HostPort, timeout_ms: int, *, quiet: bool) -> None:
        self._producer = producer
        self._silence = f"no answer from {producer} yet; trying for {timeout_ms:,} ms"
        self._retry_text = f"trying again for {timeout_ms:,} ms"
        self._quiet = quiet
        self._silence_reported = self._rejection_reported = self._helped = False

    @contextmanager
    def watch_request(self, client: Producer) -> Iterator[None]:
        """While the block waits for a request of this producer, print once why it takes long."""
        if self._quiet:
            yield
            return
        end_event = threading.Event()
        watch = threading.Thread(target=self._watch_request, args=(client, end_event), daemon=True)
        watch.start()
        try:
            yield
        except SendError as error:
            self.explain_silence([error])
            raise
        finally:
            end_event.set()
            watch.join()

    def explain_silence(self, errors: Iterable[BaseException | None]) -> None:
        """Print once what may help, if all `errors` mean that no proxy answered."""
        if not self._helped and all(map(_is_unanswered, errors)):
            self._print_help()

    def _watch_request(self, client: Producer, end_event: threading.Event) -> None:
        while not end_event.wait(PATIENCE_S) and not self._rejection_reported:
            error = client.last_error
            if error is not None and not _is_unanswered(error):
                self._rejection_reported = True
                hint(f"not stored yet: {error}; {self._retry_text}")
            elif not self._silence_reported:
                self._silence_reported = True
                hint(self._silence)
                self._print_help()

    def _print_help(self) -> None:
        self._helped = True
        hint(find_admin_port_hint(self._producer, "--producer", "producer") or HELP)


def _is_unanswered(error: BaseException | None) -> bool:
    """Return whether an error means that no proxy answered, rather than that a proxy rejected the login, or
    the client the message."""
    if not isinstance(error, SendError) or error.code is not None:
        return False
    return not isinstance(error, InvalidMessageError | LoginError)


def client_of(address: HostPort, timeout_ms: int) -> Producer:
    """Return a producer for the address. Raises ClickException for an address that does not resolve."""
    try:
        return Producer(check_host(address, "--producer"), timeout_ms=timeout_ms)
    except ClientError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def announce_new_topic(topic: str) -> Iterator[None]:
    """Print a line if the sends in the block created the topic, so that a misspelt name is noticed."""
    client = AdminClient(admin_address(), timeout_s=ADMIN_TIMEOUT_S)
    new = False
    with suppress(click.ClickException):
        try:
            client.get("topics", topic)
        except UnknownResourceError:
            new = True
    try:
        yield
    finally:
        if new:
            with suppress(click.ClickException):
                info = client.get("topics", topic)
                hint(f"created topic {topic} with {count_queues(info['queues'])}")


def add_all(
    producer: HostPort,
    timeout_ms: int,
    topic: str,
    messages: Iterable[OutgoingMessage],
    timing: dict[str, Any],
    as_json: bool,
) -> None:
    """Send delayed messages; print due times and ids. Exit code 1 if one is not stored."""
    stored = failed = 0
    rows: list[dict[str, Any]] = []
    patience = Patience(producer, timeout_ms, quiet=as_json)
    with announce_new_topic(topic), client_of(producer, timeout_ms) as client:
        for message in messages:
            row = _send_delayed(client, message, timing, patience)
            stored, failed = stored + (row["error"] is None), failed + (row["error"] is not None)
            if len(rows) < SHOWN_MAX or (row["error"] is not None and failed <= SHOWN_MAX):
                rows.append({"message": stored + failed} | row)
    if as_json:
        print_json({"stored": stored, "failed": failed, "results": rows})
    else:
        _print_outcomes(rows, stored, failed, timing)
    if failed:
        raise click.exceptions.Exit(1)


def _send_delayed(
    client: Producer, message: OutgoingMessage, timing: dict[str, Any], patience: Patience
) -> dict[str, Any]:
    try:
        with patience.watch_request(client):
            result = client.send(
                message.topic, message.body, key=message.key, tags=message.tags,
                properties=message.properties, shard_key=message.shard_key, queue=message.queue, **timing,
            )  # fmt: skip
    except ClientError as error:
        return {"id": None, "due_ms": None, "error": in_options(error)}
    due_ms = result.due_ms if isinstance(result, DelayResult) else None
    return {"id": result.delay_id, "due_ms": due_ms, "error": None}


def _print_outcomes(rows: list[dict[str, Any]], stored: int, failed: int, timing: dict[str, Any]) -> None:
    zone, now = zone_of(timing.get("zone")), datetime.now(UTC)
    repeated = "first " if "cron" in timing or "every" in timing else ""
    now_ms = now.timestamp() * 1e3
    for row in rows:
        if row["error"] is not None:
            hint(f"message {row['message']} not stored: {row['error']}")
            continue
        due = row["due_ms"]
        when = (
            format_due(datetime.fromtimestamp(due / 1000, UTC), now, zone) if due is not None else "when due"
        )
        if "deliver_at" in timing and due is not None and due <= now_ms:
            when += ", in the past, so it is delivered at once"
        print_line(f"{repeated}due {when}, id {row['id']}")
    due_at_once = bool(rows) and rows[0]["due_ms"] is not None and rows[0]["due_ms"] <= now_ms
    if stored == 1 and not failed and not (due_at_once and not repeated):
        hint(f"`ddmq delay cancel {rows[0]['id']}` takes it back")
    elif stored > SHOWN_MAX or failed:
        print_line(f"stored {stored:,} messages" + (f", {failed:,} failed" if failed else ""))


def describe_outcome(outcome: CancelOutcome, expected: DelayStatus) -> str:
    """Describe an outcome in words, with local times. `expected`: the outcome that the command requests."""
    now = datetime.now(UTC)
    text: str = outcome.status.value
    if outcome.status is DelayStatus.FIRED:
        fired = "fired" if expected is DelayStatus.FIRED else "already fired"
        text = fired if outcome.fired_at is None else f"{fired} {format_due(outcome.fired_at, now)}"
    elif outcome.status is DelayStatus.CANCELLED and expected is not DelayStatus.CANCELLED:
        text = "not done: it was cancelled before"
    elif outcome.status is DelayStatus.RESCHEDULED and outcome.due_at is not None:
        text = f"rescheduled, due {format_due(outcome.due_at, now)}"
    elif outcome.status in (DelayStatus.HELD, DelayStatus.RELEASED) and outcome.due_at is not None:
        text = f"{outcome.status.value}, due {format_due(outcome.due_at, now)}"
    elif outcome.status is DelayStatus.UNKNOWN:
        text = "unknown: there is no such message"
    elif outcome.status is DelayStatus.PENDING:
        text = "pending: it is stored and will be carried out; ask again to hear what came of it"
    return f"{text} ({outcome.text})" if outcome.text else text


def outcome_json(delay_id: str, outcome: CancelOutcome | str) -> dict[str, Any]:
    """Return the outcome of a send as a JSON object for programs."""
    if isinstance(outcome, str):
        return {"id": delay_id, "outcome": None, "error": outcome}
    moments = {"fired_ms": outcome.fired_at, "due_ms": outcome.due_at}
    detail = {"text": outcome.text} if outcome.text else {}
    return (
        {"id": delay_id, "outcome": outcome.status.name.lower()}
        | detail
        | {
            name: None if moment is None else round(moment.timestamp() * 1000)
            for name, moment in moments.items()
        }
    )
