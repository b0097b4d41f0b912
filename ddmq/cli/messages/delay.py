"""`ddmq delay …`: messages that are delivered later: send, look at, take back, move; back up and restore."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages import delay_changes, delay_histogram, delay_hold
from ddmq.cli.messages.sending import add_all, producer_option, read_timing, timeout_option, when_options
from ddmq.cli.messages.waiting import (
    choice_of,
    choice_options,
    count_levels,
    count_matches,
    find_delay_id_error,
    first_matches,
    hint_incomplete,
    hint_levels,
    hint_nothing_waits,
    print_held,
    print_messages,
)
from ddmq.cli.old_names import count_option
from ddmq.cli.output import (
    cell,
    hint,
    json_option,
    print_facts,
    print_json,
    print_line,
    print_table,
    show_row_body,
)
from ddmq.cli.values import FOLDER, NAME, TOPIC, Folder, Integer
from ddmq.moments import format_moment
from ddmq_client import OutgoingMessage
from ddmq_common.delays.levels import duration_text
from ddmq_common.private_files import UMASK

LEVEL_COLUMNS = ("level", "delay", "waiting")


@click.group()
def delay() -> None:
    """Delayed messages: at any time, by cron, or repeated. Each has an id, by which it is cancelled or moved.

    \b
    Examples:
      ddmq delay add reminders "tea" --delay 90s
      ddmq delay list reminders
      ddmq delay cancel ID
      ddmq delay add reminders stand-up --cron "0 9 * * 1-5" --zone Asia/Tokyo

    add asks a producer proxy, the others ask the admin port; so do cancel, reschedule and fire, unless
    --producer names a producer proxy.
    """


@delay.command("add", short_help="Send messages that are delivered later.")
@click.argument("topic", type=TOPIC)
@click.argument("bodies", nargs=-1, required=True)
@when_options
@click.option("--key", help="Message key, by which the message is found.")
@click.option("--tags", metavar="TAG", help="Message tag, by which groups filter.")
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
    **options: Any,
) -> None:
    """Send BODIES (one message each) to TOPIC, to be delivered at the time that --delay, --at, --cron or
    --every states.

    Prints the id of each message, by which it can be shown, cancelled, rescheduled and fired. `ddmq send` has
    the same options, and can also send files, lines and properties.

    \b
    Examples:
      ddmq delay add reminders tea --delay 90s
      ddmq delay add reminders tea --at 2026-12-24T18:00 --zone Europe/Berlin
      ddmq delay add reminders drink --every 30m --times 8
    """
    timing = read_timing(options)
    if not timing:
        raise click.UsageError("say when: --delay 90s, --at TIME, --cron FIELDS or --every DURATION")
    messages = (OutgoingMessage(topic, body, key, tags) for body in bodies)
    add_all(producer, timeout_ms, topic, messages, timing, as_json)


# --- looking


@delay.command("list", short_help="List the messages that wait, by due time.")
@click.argument("topic", type=TOPIC, required=False)
@choice_options
@count_option()
@click.option("--after", metavar="NEXT", help="Continue where an earlier listing ended, which printed this.")
@admin_options
def list_messages(
    topic: str | None, count: int, after: str | None, admin: AdminClient, as_json: bool, **options: str | None
) -> None:
    """List the delayed messages that wait, for all topics or for TOPIC alone, the earliest first.

    show, cancel, reschedule and fire accept these ids; --json has the long ones, which contain the times.

    Messages at RocketMQ's delay levels have no id and are not listed: `ddmq delay levels` counts them.
    """
    answer = first_matches(admin, choice_of(topic, options), count, after)
    if as_json:
        return print_json(answer)
    print_messages(answer["messages"])
    if not answer["messages"]:
        hint_nothing_waits(choice_of(topic, options))
    elif answer["next"] is not None:
        hint(f"there are more; go on with --after {answer['next']}")
    print_held(answer)
    hint_incomplete(answer)
    hint_levels(admin)
    return None


@delay.command("levels", short_help="Count the messages at RocketMQ's delay levels.")
@admin_options
def list_levels(admin: AdminClient, as_json: bool) -> None:
    """Count the messages that wait at each of RocketMQ's delay levels.

    They were sent with --delay-level (in RocketMQ: setDelayTimeLevel), or they failed and wait for a later
    retry; `ddmq lag` counts those retries by group. Messages at a level have no id: they cannot be listed,
    cancelled or moved.
    """
    rows = count_levels(admin)
    if as_json:
        return print_json(rows)
    used = [row for row in rows if row["waiting"]]
    if not used:
        hint(
            f"nothing waits at any of the {len(rows)} delay levels: "
            "`ddmq send TOPIC BODY --delay-level N` uses one"
        )
        return None
    print_table(
        "", LEVEL_COLUMNS, [[row["level"], duration_text(row["delay_ms"]), row["waiting"]] for row in used]
    )
    print_line(f"{sum(row['waiting'] for row in used):,} in all")
    return None


@delay.command("show", short_help="Show one message: its due time and content.")
@click.argument("delay_id", type=NAME, metavar="ID")
@admin_options
def show_message(delay_id: str, admin: AdminClient, as_json: bool) -> None:
    """Show the delayed message with this ID: whether it is pending, fired or cancelled, since or until when,
    and its content while it waits.

    Exit code 1 if nothing is known of it.
    """
    if (error := find_delay_id_error(delay_id)) is not None:
        raise click.ClickException(error)
    row = admin.get("delay", "messages", delay_id)
    if as_json:
        print_json(row)
    elif row["state"] != "unknown":
        print_facts(_message_facts(row))
    if row["state"] == "unknown":
        raise click.ClickException(f"nothing is known of {delay_id}: never sent, or forgotten after its time")


def _message_facts(row: dict[str, Any]) -> dict[str, Any]:
    facts = {"state": row["state"], "id": row.get("id") or row["uuid"]}
    for name, label in (
        ("due_ms", "due"),
        ("at_ms", "at"),
        ("kept_until_ms", "known until"),
        ("born_ms", "sent"),
    ):
        if row.get(name):
            facts[label] = format_moment(row[name])
    if row.get("held"):
        facts["held"] = "yes: it does not fire until `ddmq delay release ID`"
    for name in ("topic", "repeats", "key", "tags", "shard", "body_bytes"):
        if row.get(name) not in (None, ""):
            facts[name.replace("_", " ")] = row[name]
    facts |= {f"property {name}": value for name, value in row.get("properties", {}).items()}
    if "body_bytes" in row:
        facts["body"] = show_row_body(row)
    return facts


@delay.command("count", short_help="Count the messages that wait.")
@click.argument("topic", type=TOPIC, required=False)
@choice_options
@admin_options
def count_messages(topic: str | None, admin: AdminClient, as_json: bool, **options: str | None) -> None:
    """Count the delayed messages that wait, by topic.

    TOPIC counts those of one topic, --key those of one key, --from and --to those that are due in that time.
    """
    choice = choice_of(topic, options)
    if choice:
        answer = count_matches(admin, choice)
        if as_json:
            return print_json(answer)
        print_line(f"{answer['count']:,}" + ("" if answer["exact"] else " or more"))
        print_held(answer)
        hint_incomplete(answer)
        return None
    overview = admin.get("delay")
    if as_json:
        return print_json(overview)
    if overview["topics"]:
        print_table("", ("topic", "pending"), [[name, number] for name, number in overview["topics"].items()])
    print_line(f"{overview['pending']:,} in all")
    if not overview["pending"]:
        hint_nothing_waits({})
    print_held(overview)
    for topic, reason in overview.get("set_aside", {}).items():
        print_line(f"due messages of {topic} wait until it is available: {reason}")
    for shard in overview["shards"]:
        if not shard["fires"]:
            hint(f"shard {shard['shard']} does not fire: {shard['why']}")
    hint_incomplete(overview)
    hint_levels(admin)
    return None


# --- backup and restore


@delay.command("backup", short_help="Copy the waiting messages into a folder.")
@click.argument("folder")
@click.option("--timeout-ms", default=600_000, type=Integer(1), help="How long the backup may take.")
@admin_options
def backup(folder: str, timeout_ms: int, admin: AdminClient, as_json: bool) -> None:
    """Copy all waiting messages into a new FOLDER on the server's machine, while the service continues.

    FOLDER is a name below the server's backup_dir (backups/ in its data directory by default).

    On the same disk it costs nearly nothing: files that do not change are linked. `ddmq delay restore` puts
    it back.
    """
    client = AdminClient(admin.address, timeout_ms / 1000)
    answer = client.post("delay", "backup", body={"folder": folder})
    print_json(answer) if as_json else print_line(f"{answer['shards']} shards copied to {answer['folder']}")


@delay.command("restore", short_help="Restore a backup, while no server runs.")
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
    result = restore_backup(folder, data_dir, config.delay.dir, config.log)
    if as_json:
        print_json(result._asdict())
    elif result.messages is None:
        print_line(f"{result.shards} shards restored beside the log in {data_dir}")
    else:
        print_line(f"{cell(result.messages)} messages wait in a new log in {data_dir}")
    if result.damaged:
        numbers = ", ".join(map(str, result.damaged))
        raise click.ClickException(
            f"the backup is damaged in shard {numbers}: what could be read is restored, the log says what"
            " was left out"
        )
    hint(f"start it: ddmq serve --data-dir {data_dir}")


_COMMANDS = (
    delay_changes.cancel, delay_changes.reschedule, delay_changes.fire,
    delay_histogram.count_by_time, delay_hold.hold_delays, delay_hold.release_delays,
)  # fmt: skip
for _command in _COMMANDS:
    delay.add_command(_command)
