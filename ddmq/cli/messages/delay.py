"""`ddmq delay …`: messages that are delivered later: send, look at, take back, move; back up and restore."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.sending import (
    Patience,
    add_all,
    client_of,
    first_options,
    in_options,
    outcome_json,
    producer_option,
    say_outcome,
    when,
    when_options,
)
from ddmq.cli.output import (
    cell,
    hint,
    json_option,
    print_facts,
    print_json,
    print_table,
    say,
    show_body,
    show_row_body,
)
from ddmq.cli.values import FOLDER, NAME, TOPIC, Folder, Whole, parse_moment
from ddmq.moments import shown
from ddmq_client import CancelOutcome, ClientError, DelayStatus, OutgoingMessage, Producer
from ddmq_common.private_files import UMASK

COLUMNS = ("id", "due", "topic", "repeats", "key", "body")
UUID_LENGTH = 36  # the end of an id, which names its message alone
BULK = 1_000  # messages in one look, when those of a topic are cancelled

timeout_option = click.option(
    "--timeout-ms", default=10_000, show_default=True, type=Whole(1), help="How long it may take."
)


@click.group()
def delay() -> None:
    """Messages to be delivered later: any due time, crons, repeats; changed and taken back by their id.

    \b
    Remind me in 90 seconds, no, take that back; every weekday at 9:
      ddmq delay add reminders "tea" --delay 90s
      ddmq delay cancel ID
      ddmq delay add reminders "stand-up" --cron "0 9 * * 1-5" --zone Asia/Shanghai

    add, cancel, reschedule and fire ask a producer proxy; the others the admin port of the delay service.
    """


@delay.command("add", short_help="Send messages that are delivered later.")
@click.argument("topic", type=TOPIC)
@click.argument("bodies", nargs=-1, required=True)
@when_options
@click.option("--key", help="Message key.")
@click.option("--tags", help="Message tag.")
@timeout_option
@producer_option
@json_option
def add(
    topic: str,
    bodies: tuple[str, ...],
    key: str | None,
    tags: str | None,
    timeout_ms: int,
    producer: HostPort,
    as_json: bool,
    **given: Any,
) -> None:
    """Send BODIES (one message each) to TOPIC, delivered when --delay, --at, --cron or --every says.

    Prints the id of each, by which it can be shown, cancelled, rescheduled and fired. More ways to say what
    is sent (files, properties): `ddmq send` with the same options.
    """
    wanted = when(given)
    if not wanted:
        raise click.UsageError("say when: --delay 90s, --at TIME, --cron FIELDS or --every DURATION")
    messages = (OutgoingMessage(topic, body, key, tags) for body in bodies)
    add_all(producer, timeout_ms, topic, messages, wanted, as_json)


@delay.command("cancel", short_help="Take messages back.")
@click.argument("ids", type=NAME, nargs=-1)
@click.option("--topic", type=TOPIC, help="All that wait for this topic, also what repeats without end.")
@timeout_option
@producer_option
@admin_options
def cancel(
    ids: tuple[str, ...],
    topic: str | None,
    timeout_ms: int,
    producer: HostPort,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Take back the messages with these IDS (or uuids); of one that repeats, all deliveries to come. With
    --topic all that waits for a topic when it is looked at.

    Says the truth: cancelled, or already fired and when, or never known, or older than what is kept. Exit
    code 1 unless all of them are cancelled.
    """
    if (topic is None) == (not ids):
        raise click.UsageError("name the messages: IDS, or --topic TOPIC for all that wait for it")
    if topic is not None:
        return _cancel_topic(topic, timeout_ms, producer, admin, as_json)
    outcomes = _each(producer, timeout_ms, ids, lambda client, one: client.cancel(one), as_json)
    _tell(ids, outcomes, as_json, DelayStatus.CANCELLED)
    return None


def _cancel_topic(topic: str, timeout_ms: int, producer: HostPort, admin: AdminClient, as_json: bool) -> None:
    """Page by page; what comes in meanwhile may stay."""
    cancelled, failed, after = 0, 0, None
    while True:
        page = admin.get("delay", "messages", topic=topic, count=BULK, after=after)
        ids = tuple(row["id"] for row in page["messages"] if row["id"])
        outcomes = (
            _each(producer, timeout_ms, ids, lambda client, one: client.cancel(one), as_json) if ids else []
        )
        gone = sum(not isinstance(one, str) and one.status is DelayStatus.CANCELLED for one in outcomes)
        cancelled, failed, after = cancelled + gone, failed + len(outcomes) - gone, page["next"]
        if after is None:
            break
    left_out = {name: page[name] for name in ("orders_waiting", "elsewhere", "not_open")}
    if as_json:
        print_json({"topic": topic, "cancelled": cancelled, "not_cancelled": failed} | left_out)
    else:
        say(
            f"{cancelled:,} cancelled"
            + (f", {failed:,} not: fired meanwhile, or not heard of" if failed else "")
        )
        _say_missing(page)
    if failed or any(left_out.values()):
        raise click.exceptions.Exit(1)


@delay.command("reschedule", short_help="Give a message another due time.")
@click.argument("delay_id", type=NAME, metavar="ID")
@first_options
@click.option("--zone", help="Time zone of --at.")
@timeout_option
@producer_option
@json_option
def reschedule(delay_id: str, timeout_ms: int, producer: HostPort, as_json: bool, **given: Any) -> None:
    """Deliver the message with this ID at another moment (of one that repeats: its next delivery).

    Exit code 1 when it is not waiting any more.
    """
    wanted = when(given)
    if not wanted:
        raise click.UsageError("say when: --delay DURATION or --at TIME")
    outcomes = _each(
        producer, timeout_ms, (delay_id,), lambda client, one: client.reschedule(one, **wanted), as_json
    )
    _tell((delay_id,), outcomes, as_json, DelayStatus.RESCHEDULED)


@delay.command("fire", short_help="Deliver messages now.")
@click.argument("ids", type=NAME, nargs=-1, required=True)
@timeout_option
@producer_option
@json_option
def fire(ids: tuple[str, ...], timeout_ms: int, producer: HostPort, as_json: bool) -> None:
    """Deliver the messages with these IDS now (of one that repeats: its next delivery).

    Exit code 1 when one is neither delivered by this nor before it.
    """
    outcomes = _each(producer, timeout_ms, ids, lambda client, one: client.fire_now(one), as_json)
    _tell(ids, outcomes, as_json, DelayStatus.FIRED)


def _each(
    producer: HostPort, timeout_ms: int, ids: tuple[str, ...], ask: Any, as_json: bool
) -> list[CancelOutcome | str]:
    """An outcome for each, or why there is none."""
    found: list[CancelOutcome | str] = []
    patience = Patience(producer, timeout_ms, quiet=as_json)
    with client_of(producer, timeout_ms) as client:
        for one in ids:
            found.append(_asked(client, one, ask, patience))
    return found


def _asked(client: Producer, one: str, ask: Any, patience: Patience) -> CancelOutcome | str:
    try:
        with patience.waiting(client):
            outcome: CancelOutcome = ask(client, one)
        return outcome
    except ClientError as error:
        return in_options(error)


def _tell(
    ids: tuple[str, ...], outcomes: list[CancelOutcome | str], as_json: bool, wanted: DelayStatus
) -> None:
    if as_json:
        print_json([outcome_json(one, outcome) for one, outcome in zip(ids, outcomes, strict=True)])
    else:
        for one, outcome in zip(ids, outcomes, strict=True):
            said = outcome if isinstance(outcome, str) else say_outcome(outcome, wanted)
            say(f"{one}: {said}" if len(ids) > 1 else said, err=isinstance(outcome, str))
    if any(isinstance(outcome, str) or outcome.status is not wanted for outcome in outcomes):
        raise click.exceptions.Exit(1)


# --- looking


@delay.command("list", short_help="What waits, by due time.")
@click.argument("topic", type=TOPIC, required=False)
@click.option("--from", "start", help="Due at this moment or later: 2026-11-21T12:00 (local), epoch ms.")
@click.option("--to", "end", help="Due before this moment.")
@click.option("--limit", default=20, show_default=True, type=Whole(1, 1000), help="At most.")
@click.option("--after", help="Go on where an earlier listing ended.")
@admin_options
def list_messages(
    topic: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    after: str | None,
    admin: AdminClient,
    as_json: bool,
) -> None:
    """Messages that wait (of TOPIC alone), the earliest first. Its ids are taken by show, cancel, reschedule
    and fire; the long ones, with the times in them, are in --json."""
    found = admin.get("delay", "messages", topic=topic, count=limit, after=after, **_span(start, end))
    if as_json:
        return print_json(found)
    cells = [
        [row["id"][-UUID_LENGTH:], shown(row["due_ms"]), row["topic"], row.get("repeats") or None,
         row.get("key") or None, show_body(row.get("preview", "").encode())[:40]]
        for row in found["messages"]
    ]  # fmt: skip
    used = [at for at, _ in enumerate(COLUMNS) if not cells or any(row[at] for row in cells)]
    rows = [[row[at] for at in used] for row in cells]
    print_table("", [COLUMNS[at] for at in used], rows, whole=COLUMNS[0])
    if not cells:
        hint("nothing waits" + ("" if topic is None else f" for topic {topic}"))
    elif found["next"] is not None:
        hint(f"there are more; go on with --after {found['next']}")
    _say_missing(found)
    return None


@delay.command("show", short_help="One message: due when, what is in it.")
@click.argument("delay_id", type=NAME, metavar="ID")
@admin_options
def show(delay_id: str, admin: AdminClient, as_json: bool) -> None:
    """Everything about the message with this ID (or uuid): pending, fired, cancelled; when; its body.

    Exit code 1 when nothing is known of it.
    """
    found = admin.get("delay", "messages", delay_id)
    if as_json:
        print_json(found)
    elif found["state"] != "unknown":
        print_facts(_facts(found))
    if found["state"] == "unknown":
        raise click.ClickException(f"nothing is known of {delay_id}: never sent, or forgotten after its time")


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    facts = {"state": row["state"], "id": row.get("id") or row["uuid"]}
    for name, label in (
        ("due_ms", "due"),
        ("at_ms", "at"),
        ("kept_until_ms", "known until"),
        ("born_ms", "sent"),
    ):
        if row.get(name):
            facts[label] = shown(row[name])
    for name in ("topic", "repeats", "key", "tags", "shard", "body_bytes"):
        if row.get(name) not in (None, ""):
            facts[name.replace("_", " ")] = row[name]
    facts |= {f"property {name}": value for name, value in row.get("properties", {}).items()}
    if "body_bytes" in row:
        facts["body"] = show_row_body(row)
    return facts


@delay.command("count", short_help="How many wait.")
@click.argument("topic", type=TOPIC, required=False)
@click.option("--from", "start", help="Due at this moment or later: 2026-11-21T12:00 (local), epoch ms.")
@click.option("--to", "end", help="Due before this moment.")
@admin_options
def count(topic: str | None, start: str | None, end: str | None, admin: AdminClient, as_json: bool) -> None:
    """How many messages wait (for TOPIC alone), and with --from and --to how many are due in that time."""
    span = _span(start, end)
    if topic is not None or span:
        found = admin.get("delay", "count", topic=topic, **span)
        if as_json:
            return print_json(found)
        say(f"{found['count']:,}" + ("" if found["exact"] else " or more"))
        _say_missing(found)
        return None
    found = admin.get("delay")
    if as_json:
        return print_json(found)
    print_table("", ("topic", "pending"), [[name, number] for name, number in found["topics"].items()])
    say(f"{found['pending']:,} in all")
    for shard in found["shards"]:
        if not shard["fires"]:
            hint(f"shard {shard['shard']} does not fire: {shard['why']}")
    _say_missing(found)
    return None


def _span(start: str | None, end: str | None) -> dict[str, int]:
    given = {"from_ms": (start, "--from"), "to_ms": (end, "--to")}
    return {name: parse_moment(text, option) for name, (text, option) in given.items() if text is not None}


def _say_missing(found: dict[str, Any]) -> None:
    """Tell what no answer of this process can have."""
    if found.get("orders_waiting"):
        hint(f"{found['orders_waiting']:,} orders are not taken in yet: what they add is not among these")
    if found["not_open"]:
        hint(f"shards {_numbers(found['not_open'])} are not open: what waits there is not among these")
    if found["elsewhere"]:
        elsewhere = _numbers(found["elsewhere"])
        hint(f"shards {elsewhere} are held by other delay services: ask their admin ports, too")


def _numbers(shards: list[int]) -> str:
    return ", ".join(str(number) for number in shards)


# --- backup and restore


@delay.command("backup", short_help="Copy what waits into a folder, while it runs.")
@click.argument("folder")
@click.option("--timeout-ms", default=600_000, type=Whole(1), help="How long it may take.")
@admin_options
def backup(folder: str, timeout_ms: int, admin: AdminClient, as_json: bool) -> None:
    """Copy all that waits into a new FOLDER on the server's machine; the service goes on meanwhile.

    FOLDER is a name below the server's backup_dir (backups/ in its data directory by default).

    On the same disk it costs nearly nothing: files that do not change are linked. `ddmq delay restore` puts
    it back.
    """
    client = AdminClient(admin.address, timeout_ms / 1000)
    answer = client.post("delay", "backup", body={"folder": folder})
    print_json(answer) if as_json else say(f"{answer['shards']} shards copied to {answer['folder']}")


@delay.command("restore", short_help="Put a backup back, while nothing runs.")
@click.argument("folder", type=Folder(path_type=Path, file_okay=False, exists=True))
@click.option("--data-dir", type=FOLDER, required=True,
              help="The directory of the server, which must not run.")  # fmt: skip
@click.option("--config", "config_dir", type=FOLDER,
              help="The configuration folder of the server, if it has one.")  # fmt: skip
@json_option
def restore(folder: Path, data_dir: Path, config_dir: Path | None, as_json: bool) -> None:
    """Put the backup in FOLDER back into a directory without delay stores; start the server afterwards.

    With the log in --data-dir nothing fires twice: what was fired or cancelled after the backup is
    recognised, and what was sent after it is taken in again. Into an empty --data-dir a new log is begun, and
    all that waited at the backup waits again. A directory that has delay stores is refused, and a log that
    the backup is not of, as one that a restore has begun.
    """
    from ddmq.server.config import load_folder
    from ddmq.server.delays.restore import restore_backup

    os.umask(UMASK)
    config = load_folder(config_dir)
    done = restore_backup(folder, data_dir, config.delay.dir, config.log)
    if as_json:
        print_json(done._asdict())
    elif done.messages is None:
        say(f"{done.shards} shards restored beside the log in {data_dir}")
    else:
        say(f"{cell(done.messages)} messages wait in a new log in {data_dir}")
    if done.damaged:
        numbers = ", ".join(map(str, done.damaged))
        raise click.ClickException(
            f"the backup is damaged in shard {numbers}: what could be read is restored, the log says what"
            " was left out"
        )
    hint(f"start it: ddmq serve --data-dir {data_dir}")
