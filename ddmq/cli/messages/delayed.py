"""Delayed messages from the command line: one call a message, and its outcome in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, NotThere, admin_address
from ddmq.cli.messages.patience import Patience
from ddmq.cli.messages.when import shown, zone_of
from ddmq.cli.output import hint, print_json, say
from ddmq.cli.values import known_host
from ddmq_client import CancelOutcome, ClientError, DelayResult, DelayStatus, OutgoingMessage, Producer

SHOWN_MAX = 20
ADMIN_TIMEOUT_S = 1.0  # what is told by the way is not waited for longer


def client_of(address: HostPort, timeout_ms: int) -> Producer:
    """Raises ClickException for an address that is none, or that nothing is known of."""
    try:
        return Producer(known_host(address, "--producer"), timeout_ms=timeout_ms)
    except ClientError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def new_topic_told(topic: str) -> Iterator[None]:
    """Say that what is sent meanwhile made its topic, where the admin port knows: a misspelt one is seen."""
    client = AdminClient(admin_address(), timeout_s=ADMIN_TIMEOUT_S)
    new = False
    with suppress(click.ClickException):
        try:
            client.get("topics", topic)
        except NotThere:
            new = True
    try:
        yield
    finally:
        if new:
            with suppress(click.ClickException):
                made = client.get("topics", topic)
                hint(f"created topic {topic} with {made['queues']} queues")


def add_all(
    producer: HostPort,
    timeout_ms: int,
    topic: str,
    messages: Iterable[OutgoingMessage],
    wanted: dict[str, Any],
    as_json: bool,
) -> None:
    """Send them; say when they are due and what their ids are. Exit code 1 when one is not stored."""
    stored = failed = 0
    rows: list[dict[str, Any]] = []
    patience = Patience(producer, timeout_ms, quiet=as_json)
    with new_topic_told(topic), client_of(producer, timeout_ms) as client:
        for message in messages:
            row = _added(client, message, wanted, patience)
            stored, failed = stored + (row["error"] is None), failed + (row["error"] is not None)
            if len(rows) < SHOWN_MAX or (row["error"] is not None and failed <= SHOWN_MAX):
                rows.append({"message": stored + failed} | row)
    if as_json:
        print_json({"stored": stored, "failed": failed, "results": rows})
    else:
        _tell(rows, stored, failed, wanted)
    if failed:
        raise click.exceptions.Exit(1)


def _added(
    client: Producer, message: OutgoingMessage, wanted: dict[str, Any], patience: Patience
) -> dict[str, Any]:
    try:
        with patience.waiting():
            result = client.send(
                message.topic, message.body, key=message.key, tags=message.tags,
                properties=message.properties, shard_key=message.shard_key, queue=message.queue, **wanted,
            )  # fmt: skip
    except ClientError as error:
        return {"id": None, "due_ms": None, "error": str(error)}
    due_ms = result.due_ms if isinstance(result, DelayResult) else None
    return {"id": result.delay_id, "due_ms": due_ms, "error": None}


def _tell(rows: list[dict[str, Any]], stored: int, failed: int, wanted: dict[str, Any]) -> None:
    zone, now = zone_of(wanted.get("zone")), datetime.now(UTC)
    repeated = "first " if "cron" in wanted or "every" in wanted else ""
    for row in rows:
        if row["error"] is not None:
            hint(f"message {row['message']} not stored: {row['error']}")
            continue
        due = row["due_ms"]
        when = shown(datetime.fromtimestamp(due / 1000, UTC), now, zone) if due is not None else "when due"
        say(f"{repeated}due {when}, id {row['id']}")
    due_at_once = bool(rows) and rows[0]["due_ms"] is not None and rows[0]["due_ms"] <= now.timestamp() * 1e3
    if stored == 1 and not failed and not (due_at_once and not repeated):
        hint(f"`ddmq delay cancel {rows[0]['id']}` takes it back")
    elif stored > SHOWN_MAX or failed:
        say(f"stored {stored:,} messages" + (f", {failed:,} failed" if failed else ""))


def say_outcome(outcome: CancelOutcome, wanted: DelayStatus) -> str:
    """Tell an outcome in words, with the moments in local time. `wanted`: what was to come of it."""
    now = datetime.now(UTC)
    said: str = outcome.status.value
    if outcome.status is DelayStatus.FIRED:
        fired = "fired" if wanted is DelayStatus.FIRED else "already fired"
        said = fired if outcome.fired_at is None else f"{fired} {shown(outcome.fired_at, now)}"
    elif outcome.status is DelayStatus.CANCELLED and wanted is not DelayStatus.CANCELLED:
        said = "not done: it was cancelled before"
    elif outcome.status is DelayStatus.RESCHEDULED and outcome.due_at is not None:
        said = f"rescheduled, due {shown(outcome.due_at, now)}"
    elif outcome.status is DelayStatus.UNKNOWN:
        said = "unknown: there is no such message"
    elif outcome.status is DelayStatus.PENDING:
        said = "pending: it is stored and will be carried out; ask again to hear what came of it"
    return f"{said} ({outcome.text})" if outcome.text else said


def outcome_json(delay_id: str, outcome: CancelOutcome | str) -> dict[str, Any]:
    """Return the outcome as programs read it."""
    if isinstance(outcome, str):
        return {"id": delay_id, "outcome": None, "error": outcome}
    moments = {"fired_ms": outcome.fired_at, "due_ms": outcome.due_at}
    said = {"text": outcome.text} if outcome.text else {}
    return (
        {"id": delay_id, "outcome": outcome.status.name.lower()}
        | said
        | {
            name: None if moment is None else round(moment.timestamp() * 1000)
            for name, moment in moments.items()
        }
    )
