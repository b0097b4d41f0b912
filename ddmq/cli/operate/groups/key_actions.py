"""`ddmq group park`, `skip` and `replay`: what an operator does about a blocked key, and what came of it.

A sentence says only what the server has answered for the key's first message: `outcome` of each head.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.output import hint, print_json, print_line
from ddmq.cli.values import GROUP, blocked_keys
from ddmq.moments import format_age

NEXT_CLIENT = "the next client that pulls {topic} gets it"
REPLAYED = {
    "replayed": f"waits for nothing any more: {NEXT_CLIENT}",
    "taken away": f"is taken from {{client}}: {NEXT_CLIENT}",
    "ready": f"is due already: {NEXT_CLIENT}",
    "being acknowledged": "is being acknowledged by {client}",
}
NOT_REPLAYED = {
    "in flight": "is in flight with {client}, {lease}; --take-away ends the lease and delivers it again",
    "to the dead letters": "is on its way to the dead letters; the next message of the key follows",
}
NOT_SKIPPED = {
    "acknowledged": "was acknowledged meanwhile",
    "expired": "was not there any more: retention has deleted it",
    "moved to another proxy": "is in a queue that went to another proxy: ask that one",
}
LOST = ("taken away", "to the dead letters", "dead letter")  # to a client that had the message in flight
Heads = list[dict[str, Any]]


def client_text(head: Mapping[str, Any]) -> str:
    """Return the name of the client that has the key's first message in flight."""
    name, address = head["client"], head["address"]
    if name and address:
        return f"{name} ({address})"
    return str(name or address or "a client that got it before this proxy had the queue")


def lease_text(head: Mapping[str, Any]) -> str:
    """Return a text that states how long the client has had the message, and when its lease ends."""
    now_ms = time.time() * 1000
    leased_s, remaining_s = (now_ms - head["leased_ms"]) / 1000, (head["until_ms"] - now_ms) / 1000
    extended = ", extended by it" if head["extended"] else ""
    return f"for {format_age(leased_s)}; its lease ends in {format_age(remaining_s)}{extended}"


def _format_position(head: Mapping[str, Any]) -> str:
    return f"{head['topic']}/{head['queue_id']}/{head['offset']}"


def _describe_head(head: Mapping[str, Any], text: str) -> str:
    facts = {"topic": head["topic"], "client": client_text(head), "lease": lease_text(head)}
    return f"its first message ({_format_position(head)}) " + text.format_map(facts)


def _warn_of_handlers(heads: Heads) -> None:
    """Warn of clients that have lost a message which they may still be handling."""
    for head in heads:
        if head["until_ms"] and head["outcome"] in LOST:
            counts = head["outcome"] == "taken away" and not head["client"]
            answer = "still counts: it names no lease" if counts else "does not count any more"
            hint(f"note: {client_text(head)} may still be handling it; its answer {answer}")


def _request_action(admin: AdminClient, name: str, key: str, action: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = admin.post("groups", name, "keys", body={"action": action, "key": key} | more)
    answer.setdefault("heads", [])  # a server of the release before does not tell
    return answer


def _end(answer: Mapping[str, Any], failures: list[str], as_json: bool) -> None:
    """Print the answer for programs with `as_json`. If there are failures, print them and exit with code
    1."""
    if as_json:
        print_json(answer)
    if failures and as_json:
        raise click.exceptions.Exit(1)
    if failures:
        raise click.ClickException(f"{answer['key']}: " + "; ".join(failures))


key_argument = click.argument("key", shell_complete=blocked_keys)
name_argument = click.argument("name", type=GROUP, metavar="GROUP")


@click.command(short_help="Hold a key back until it is replayed.")
@name_argument
@key_argument
@admin_options
def park(name: str, key: str, admin: AdminClient, as_json: bool) -> None:
    """Deliver no message of KEY until it is replayed. Other keys are not affected, and nothing is lost.

    KEY is an order key as `ddmq group keys` shows it; its quotes may be left out. It stays parked over
    restarts. A client that has its first message keeps it.
    """
    answer = _request_action(admin, name, key, "park")
    if as_json:
        return print_json(answer)
    print_line(
        f"parked {answer['key']}; `ddmq group replay {name} {shlex.quote(answer['key'])}` lets it go on"
    )
    for head in answer["heads"]:
        if head["outcome"] == "in flight":
            hint(
                "note: "
                + _describe_head(head, "is in flight with {client}, {lease}; nothing after it is delivered")
            )
        elif head["outcome"] == "to the dead letters":
            hint("note: " + _describe_head(head, "is on its way to the dead letters"))
    return None


@click.command(short_help="Move a key's first message to the dead letters.")
@name_argument
@key_argument
@admin_options
def skip(name: str, key: str, admin: AdminClient, as_json: bool) -> None:
    """Move KEY's first message to the dead letters, so that the next message of the key follows.

    KEY is an order key as `ddmq group keys` shows it; its quotes may be left out. A parked key stays parked.
    A client that has the message may still be handling it; its answer no longer counts. `ddmq dlq resend
    GROUP` sends the message again later.
    """
    answer = _request_action(admin, name, key, "skip")
    heads = answer["heads"]
    failures = [
        _describe_head(head, NOT_SKIPPED[head["outcome"]]) for head in heads if head["outcome"] in NOT_SKIPPED
    ]
    skipped = [head for head in heads if head["outcome"] not in NOT_SKIPPED]
    if not as_json and (skipped or not heads):
        where = "".join(f" ({_format_position(head)})" for head in skipped)
        print_line(f"skipped the first message of {answer['key']}{where}; `ddmq dlq show {name}` has it")
        _warn_of_handlers(skipped)
    _end(answer, failures, as_json)


@click.command(short_help="Deliver a blocked key's first message now.")
@name_argument
@key_argument
@click.option("--take-away", is_flag=True, help="End the lease of a client that has the message in flight.")
@admin_options
def replay(name: str, key: str, take_away: bool, admin: AdminClient, as_json: bool) -> None:
    """Deliver KEY's first message again now, without waiting for its retry. A parked key is no longer parked.

    KEY is an order key as `ddmq group keys` shows it; its quotes may be left out. If a client has the message
    in flight, it keeps it: the command prints which client and until when, and exits with 1. With --take-away
    that lease ends, and the next client that pulls gets the message. The first client may still be handling
    it, and its answer no longer counts: stop it first if two clients must not handle the message at the same
    time.
    """
    answer = _request_action(admin, name, key, "replay", **({"take_away": True} if take_away else {}))
    heads, unparked = answer["heads"], answer.get("parked", False)
    unchanged = [
        _describe_head(head, NOT_REPLAYED[head["outcome"]])
        for head in heads
        if head["outcome"] in NOT_REPLAYED
    ]
    if not as_json:
        _print_replayed(answer, unchanged if unparked else [])
        _warn_of_handlers(heads)
    _end(answer, [] if unparked else unchanged, as_json)


def _print_replayed(answer: Mapping[str, Any], unchanged: list[str]) -> None:
    """Print which first messages of a replayed key are delivered again. `unchanged`: those of a parked key
    that are not."""
    key, heads = answer["key"], answer["heads"]
    redelivered = [
        _describe_head(head, REPLAYED[head["outcome"]]) for head in heads if head["outcome"] in REPLAYED
    ]
    if answer.get("parked", False):
        print_line("; ".join([f"{key} is not parked any more", *redelivered, *unchanged]))
        if not heads:
            hint("no message of it is known to wait at this proxy")
    elif redelivered:
        print_line("; ".join([f"{key} goes on", *redelivered]))
    elif not heads:
        print_line(f"{key} was replayed; what came of it the server, of an older release, does not tell")
