"""`ddmq tx …`: transactions that are not decided, and an operator's word on one."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.old_names import count_option
from ddmq.cli.output import confirm, hint, print_facts, print_json, print_line, print_table, show_body
from ddmq.cli.values import Name
from ddmq.moments import format_moment
from ddmq_common.names import TRANSACTION_DEAD_TOPIC

COLUMNS = ("transaction", "group", "began", "messages", "bytes", "checks", "topics")
MESSAGE_COLUMNS = ("topic", "queue", "key", "delay", "body")
ID = Name()


@click.group()
def tx() -> None:
    """List, show, commit and roll back transactions.

    If an application leaves a transaction undecided, its producer group is asked up to fifteen times, a
    minute apart; then its messages become dead letters in the topic TRANS_CHECK_MAX_TIME_TOPIC.

    \b
    Examples:
      ddmq tx list
      ddmq tx show ID
      ddmq tx rollback ID
    """


@tx.command("list", short_help="Undecided transactions, oldest first.")
@click.option("--group", metavar="GROUP", help="Only transactions of this producer group.")
@count_option()
@admin_options
def list_open(group: str | None, count: int, admin: AdminClient, as_json: bool) -> None:
    """List transactions that are neither committed nor rolled back, oldest first.

    "checks": how often the producer group was asked for the outcome.
    """
    answer = admin.get("transactions", group=group, count=count)
    if as_json:
        return print_json(answer)
    if answer["transactions"]:
        print_table("", COLUMNS, [_transaction_cells(row) for row in answer["transactions"]])
    many = f"{answer['open']:,} open" if answer["whole"] else f"more than {answer['open']:,} open"
    if not answer["transactions"]:
        of_group = "" if group is None else f" of producer group {group}"
        hint(
            f"no open transactions{of_group}: each is committed or rolled back; "
            f"`ddmq dlq show {TRANSACTION_DEAD_TOPIC}` shows those that nobody decided"
        )
    elif len(answer["transactions"]) < answer["open"] or not answer["whole"]:
        hint(f"{many}; --count shows more")
    else:
        hint("`ddmq tx show ID` has the messages of one")
    return None


def _transaction_cells(row: dict[str, Any]) -> list[Any]:
    return [
        row["transaction"], row["group"], format_moment(row["began_ms"]), row["messages"], row["bytes"],
        row["checks"], row["topics"],
    ]  # fmt: skip


@tx.command("show", short_help="One transaction: its messages, or its outcome.")
@click.argument("transaction", type=ID)
@admin_options
def show_one(transaction: str, admin: AdminClient, as_json: bool) -> None:
    """Show TRANSACTION: its messages and its owner while it is open, afterwards its outcome.

    The outcome is known as long as the log retains its record.
    """
    answer = admin.get("transactions", transaction)
    if as_json:
        return print_json(answer)
    if answer["state"] == "unknown":
        raise click.ClickException(
            f"transaction {transaction} is not open, and how it ended is not known (any more)"
        )
    facts = {name: answer[name] for name in ("transaction", "state", "group")}
    if "ended_ms" in answer:
        facts |= {"ended": format_moment(answer["ended_ms"]), "messages": answer["messages"]}
        print_facts(facts | ({"reason": answer["reason"]} if answer["reason"] else {}))
        if answer["state"] == "dead letter":
            hint(f"`ddmq dlq show {TRANSACTION_DEAD_TOPIC}` has its messages, `ddmq dlq resend` sends them")
        return None
    facts |= {
        "began": format_moment(answer["began_ms"]),
        "checks": answer["checks"],
        "shard": answer["shard"],
    }
    print_facts(facts | {"decided by": answer["owner"] or None})
    print_table("", MESSAGE_COLUMNS, [_message_cells(row) for row in answer["contents"]])
    hint(f"`ddmq tx commit {transaction}` makes them visible, `ddmq tx rollback {transaction}` drops them")
    return None


def _message_cells(row: dict[str, Any]) -> list[Any]:
    delay = f"level {row['level']}" if row["level"] else "by its properties" if row["delayed"] else None
    body = show_body(row["preview"].encode(), row["body_bytes"])
    return [row["topic"], str(row["queue"]), row["key"] or None, delay, body[:60]]


@tx.command("commit", short_help="Make the messages of a transaction visible.")
@click.argument("transaction", type=ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def commit(transaction: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Commit TRANSACTION in place of its producer group: all its messages become visible at once.

    Exit code 1 if it was already rolled back, or is a dead letter.
    """
    _end(admin, transaction, "commit", "its messages become visible", yes, as_json)


@tx.command("rollback", short_help="Drop the messages of a transaction.")
@click.argument("transaction", type=ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def rollback(transaction: str, yes: bool, admin: AdminClient, as_json: bool) -> None:
    """Roll TRANSACTION back in place of its producer group: its messages never become visible.

    Exit code 1 if it was already committed, or is a dead letter.
    """
    _end(admin, transaction, "rollback", "its messages are dropped", yes, as_json)


def _end(admin: AdminClient, transaction: str, action: str, what: str, yes: bool, as_json: bool) -> None:
    if not yes:
        confirm(f"{action} transaction {transaction}: {what}, whatever its application did; go on?")
    answer = admin.post("transactions", transaction, body={"action": action})
    if as_json:
        print_json(answer)
    else:
        print_line(f"{answer['state']}: transaction {answer['transaction']} of group {answer['group']}")
