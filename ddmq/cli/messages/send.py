"""`ddmq send`: messages from arguments, a file or standard input, with progress."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from ddmq.address import HostPort
from ddmq.cli.messages.sending import (
    Patience,
    add_all,
    announce_new_topic,
    client_of,
    producer_option,
    read_timing,
    when_options,
)
from ddmq.cli.output import console, hint, json_option, print_json, print_line
from ddmq.cli.values import TOPIC, Integer
from ddmq_client import NotStoredError, OutgoingMessage, Producer, SendResult, UnknownOutcomeError
from ddmq_client.idl.codes import DELAY_PROPERTY
from ddmq_client.outgoing import LEVEL_MAX

WINDOW = 500  # messages a request when many are sent
PREFIX_MAX = 235  # characters, so that a key has no more than 255
STOPPED = (
    "stopped behind message {:,}: nothing more could be stored, as said above; what follows was not sent."
    " Later run the same again, within the window (an hour): what is stored already is passed over"
)


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("bodies", nargs=-1)
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Send this file as one message; may be repeated.")  # fmt: skip
@click.option("--lines", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
              help="Send each line of this file that is not empty; - is standard input.")  # fmt: skip
@click.option("--stdin", is_flag=True, help="Send all of standard input as one message.")
@click.option("--key", help="Message key, by which the message is found; --shard-key chooses the queue.")
@click.option("--tags", metavar="TAG", help="Message tag, by which groups filter.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property (header); may be repeated.",
)
@when_options
@click.option("--delay-level", type=Integer(0, LEVEL_MAX),
              help="Deliver after this delay level of RocketMQ: 1 = 1 s, 5 = 1 min, … 18 = 2 h.")  # fmt: skip
@click.option("--shard-key", help="Messages with the same shard key go to the same queue, in order.")
@click.option(
    "--queue",
    type=Integer(0),
    help="Send to this queue. The number is taken modulo the number of queues: of 4 queues, 99 is queue 3.",
)
@click.option("--idempotency-key-prefix", "prefix", metavar="TEXT",
              help="Message N has idempotency key TEXT/N: a run that is repeated within the window (an hour"
              " by default) stores only what is missing. A server knows 500,000 keys of one topic by"
              " default, half of its idempotency_keys_max; a run stops where there is no room.")  # fmt: skip
@click.option(
    "--repeat", default=1, show_default=True, type=Integer(1), help="Send everything so many times."
)
@click.option(
    "--timeout-ms", default=10_000, show_default=True, type=Integer(1), help="How long one request may take."
)
@producer_option
@json_option
def send(
    topic: str,
    bodies: tuple[str, ...],
    files: tuple[Path, ...],
    lines: Path | None,
    stdin: bool,
    key: str | None,
    tags: str | None,
    properties: tuple[str, ...],
    delay_level: int | None,
    shard_key: str | None,
    queue: int | None,
    prefix: str | None,
    repeat: int,
    timeout_ms: int,
    producer: HostPort,
    as_json: bool,
    **timing_options: Any,
) -> None:
    """Send messages to TOPIC: each of BODIES, each --file, each of --lines. Done when they are durable.

    \b
    Examples:
      ddmq send orders hello
      ddmq send orders '{"id": 17}' --key 17 --tags new --property region=eu
      cat orders.txt | ddmq send orders --lines -
      ddmq send reminders tea --delay 90s

    With --delay, --at, --cron or --every they are delivered later, and the id of each is printed; `ddmq
    delay` shows, cancels and moves messages by that id (docs/delay.md). A topic that does not exist is
    created. Exit code 1 if any message was not stored; the first 20 of those are listed with the reason.
    """
    property_values = dict(_parse_property(text) for text in properties)
    timing = read_timing(timing_options)
    if timing and delay_level is not None:
        raise click.UsageError("--delay-level stands beside another delay; choose one")
    if delay_level is not None:
        property_values[DELAY_PROPERTY] = str(delay_level)
    keys = _idempotency_keys(prefix, delayed=bool(timing))
    payloads = zip(_read_payloads(bodies, files, lines, stdin, repeat), keys, strict=False)
    messages = (
        OutgoingMessage(topic, body, key, tags, property_values or None, shard_key, queue, once)
        for body, once in payloads
    )
    total = None if lines is not None else (len(bodies) + len(files) + int(stdin)) * repeat
    if total == 0:
        raise click.UsageError("nothing to send: give a BODY, --file, --lines or --stdin")
    if timing:
        add_all(producer, timeout_ms, topic, messages, timing, as_json)
        return
    patience = Patience(producer, timeout_ms, quiet=as_json)
    with announce_new_topic(topic), client_of(producer, timeout_ms) as client:
        report = _send_all(client, messages, total, as_json, patience)
    if as_json:
        print_json(report.as_json())
    else:
        report.print_result(patience)
    if report.failed:
        raise click.exceptions.Exit(1)


class SendReport:
    """The results of all messages, bounded: counts, and the first 20 results and the first 20 failures."""

    SHOWN = 20

    def __init__(self) -> None:
        self.stored = self.failed = self.body_bytes = 0
        self.before = self.differing = 0  # of the stored: by an earlier run, and with another body
        self.stopped = False  # there were more, and they were not sent
        self.results: list[SendResult] = []
        self.failures: list[tuple[int, SendResult]] = []  # with their places, from 1
        self.began = time.monotonic()

    def add(self, result: SendResult, message: OutgoingMessage) -> None:
        if result.stored:
            self.stored += 1
            self.body_bytes += len(message.body)
            self.before += result.duplicate and message.idempotency_key is not None
            self.differing += result.body_differs
        else:
            self.failed += 1
            if len(self.failures) < self.SHOWN:
                self.failures.append((self.stored + self.failed, result))
        if len(self.results) < self.SHOWN:
            self.results.append(result)

    def as_json(self) -> dict[str, object]:
        numbered = dict(enumerate(self.results, 1)) | dict(self.failures)
        results = [
            {"message": number, "code": one.code, "id": one.message_id, "queue": one.queue_id,
             "offset": one.offset, "delay_id": one.delay_id,
             "error": None if one.error is None else str(one.error)}
            for number, one in sorted(numbered.items())
        ]  # fmt: skip
        return {
            "stored": self.stored,
            "failed": self.failed,
            "stored_before": self.before,
            "body_differs": self.differing,
            "body_bytes": self.body_bytes,
            "stopped": self.stopped,
            "seconds": round(time.monotonic() - self.began, 3),
            "results": results,
        }

    def print_result(self, patience: Patience) -> None:
        """Print for people how many messages were stored, and which failed."""
        total = self.stored + self.failed
        for number, result in self.failures:
            what = "outcome unknown" if isinstance(result.error, UnknownOutcomeError) else "not stored"
            which = f" (message {number:,} of {total:,})" if total > 1 else ""
            hint(f"{what}{which}: {result.error}")
        if self.failed > len(self.failures):
            hint(f"… and {self.failed - len(self.failures):,} more that were not stored")
        if self.stopped:
            hint(STOPPED.format(total))
        if self.differing:
            hint(f"there already with another body, which stays: {self.differing:,}")
        if total and not self.stored:
            patience.explain_silence(one.error for one in self.results)
        if not total:
            hint("nothing to send: the input has no lines")
        elif self.stored == 1 and not self.failed:
            _print_stored(self.results[0], "there already" if self.before else "stored")
        elif self.stored:
            seconds = max(time.monotonic() - self.began, 1e-6)
            already = f", {self.before:,} of them were there already" if self.before else ""
            rate = f"({self.stored / seconds:,.0f}/s)"
            print_line(f"stored {self.stored:,} messages in {seconds:.2f} s {rate}{already}")
            for number, one in enumerate(self.results, 1):
                if one.delay_id is not None:
                    print_line(f"message {number} is delayed, delay id {one.delay_id}")


def _print_stored(one: SendResult, what: str) -> None:
    """Print the result of a single send, with its `delay_id` if its properties requested a delay."""
    where = "delayed" if one.offset is None else f"queue {one.queue_id}, offset {one.offset}"
    by = "" if one.delay_id is None else f", delay id {one.delay_id}"
    print_line(f"{what}: {where}, id {one.message_id}{by}")
    if one.delay_id is not None:
        hint(f"`ddmq delay cancel {one.delay_id}` takes it back")


def _send_all(
    client: Producer,
    messages: Iterable[OutgoingMessage],
    total: int | None,
    as_json: bool,
    patience: Patience,
) -> SendReport:
    report = SendReport()
    columns = (SpinnerColumn(), TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    screen = console(err=True)
    quiet = as_json or not screen.is_terminal or total == 1
    with Progress(*columns, console=screen, disable=quiet, transient=True) as progress:
        task = progress.add_task("sending", total=total)
        windows = _split_windows(messages)
        for window in windows:
            with patience.watch_request(client):
                results = client.send_batch(window)
            for message, result in zip(window, results, strict=True):
                report.add(result, message)
            progress.advance(task, len(window))
            if window[0].idempotency_key is not None and all(map(_is_for_later, results)):
                report.stopped = next(windows, None) is not None
                break
    return report


def _is_for_later(result: SendResult) -> bool:
    """Return whether a later run may store the message: it was not stored, or its outcome is unknown."""
    return isinstance(result.error, NotStoredError | UnknownOutcomeError)


def _split_windows(messages: Iterable[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    """Cut messages into windows by count, and by bytes so that a window of large files is not held at
    once."""
    window: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        window.append(message)
        size += len(message.body)
        if len(window) >= WINDOW or size > 4 << 20:
            yield window
            window, size = [], 0
    if window:
        yield window


def _read_payloads(
    bodies: tuple[str, ...], files: tuple[Path, ...], lines: Path | None, stdin: bool, repeat: int
) -> Iterator[bytes]:
    for _ in range(repeat):
        for body in bodies:
            yield body.encode()
        for path in files:
            yield path.read_bytes()
        if stdin:
            yield sys.stdin.buffer.read()
        if lines is not None:
            yield from _read_lines(lines)


def _idempotency_keys(prefix: str | None, delayed: bool) -> Iterator[str | None]:
    """Return the idempotency key of each message, in order. Raises UsageError."""
    if prefix is None:
        return itertools.repeat(None)
    if not 1 <= len(prefix) <= PREFIX_MAX:
        raise click.UsageError(
            f"--idempotency-key-prefix has {len(prefix)} characters; allowed: 1 to {PREFIX_MAX}"
        )
    if delayed:
        raise click.UsageError(
            "--idempotency-key-prefix stands beside a delay; allowed beside one: --delay-level"
        )
    return (f"{prefix}/{number}" for number in itertools.count(1))


def _read_lines(path: Path) -> Iterator[bytes]:
    if str(path) == "-":
        yield from _nonempty_lines(sys.stdin.buffer)
    else:
        with path.open("rb") as file:
            yield from _nonempty_lines(file)


def _nonempty_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines that are not empty: a message's body cannot be empty."""
    for line in file:
        body = line.rstrip(b"\r\n")
        if body:
            yield body


def _parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
    return name, value
