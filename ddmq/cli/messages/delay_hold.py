"""`ddmq delay hold` and `release`: let delayed messages wait beyond their due time: those of a topic, or
single ones."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.delay_changes import print_outcomes, request_changes
from ddmq.cli.messages.delay_requests import HOLD, RELEASE, AdminRequests, DelayChange
from ddmq.cli.messages.sending import timeout_option
from ddmq.cli.messages.waiting import find_delay_id_error, held_text
from ddmq.cli.output import print_json, print_line
from ddmq.cli.values import NAME, TOPIC
from ddmq_client import DelayStatus


@click.command("hold", short_help="Fire no delayed message of a topic, or not these messages.")
@click.argument("targets", type=NAME, nargs=-1, required=True, metavar="TOPIC | ID...")
@timeout_option
@admin_options
def hold_delays(targets: tuple[str, ...], timeout_ms: int, admin: AdminClient, as_json: bool) -> None:
    """Fire no delayed message of TOPIC, or none of those with these IDS, until `ddmq delay release`.

    \b
    Examples:
      ddmq delay hold reminders
      ddmq delay hold 5d0f6c1e-8a3b-4f27-9c64-1b2e7d90a3f5

    A hold stays over restarts, and applies to every delay service: that of a topic within a second. Messages
    that become due wait; they can still be cancelled and rescheduled. Delay levels and retries are not held.
    With IDS, exit code 1 unless all of them are held.
    """
    _change_hold(admin, targets, timeout_ms, hold=True, as_json=as_json)


@click.command("release", short_help="Fire the delayed messages of a topic, or these messages, again.")
@click.argument("targets", type=NAME, nargs=-1, required=True, metavar="TOPIC | ID...")
@timeout_option
@admin_options
def release_delays(targets: tuple[str, ...], timeout_ms: int, admin: AdminClient, as_json: bool) -> None:
    """Fire the delayed messages of TOPIC, or those with these IDS, again. What is overdue fires at once; that
    of a topic in the order of its due times.

    A message that is held itself waits until it is released itself, also if its topic is released.
    """
    _change_hold(admin, targets, timeout_ms, hold=False, as_json=as_json)


def _change_hold(
    admin: AdminClient, targets: tuple[str, ...], timeout_ms: int, *, hold: bool, as_json: bool
) -> None:
    if find_delay_id_error(targets[0]) is None:
        change, expected = (HOLD, DelayStatus.HELD) if hold else (RELEASE, DelayStatus.RELEASED)
        outcomes = request_changes(AdminRequests(admin, timeout_ms), targets, DelayChange(change))
        print_outcomes(targets, outcomes, as_json, expected)
    elif len(targets) > 1:
        raise click.UsageError("give one TOPIC, or IDS of messages")
    else:
        topic = TOPIC.convert(targets[0], None, click.get_current_context())
        _set_held(admin, topic, hold=hold, as_json=as_json)


def _set_held(admin: AdminClient, topic: str, *, hold: bool, as_json: bool) -> None:
    was_held = admin.get("topics", topic).get("hold_delays")
    answer: dict[str, Any] = admin.post("topics", topic, body={"create": False, "hold_delays": hold})
    if as_json:
        print_json(answer)
    elif hold:
        print_line(held_text(topic, answer["delays_held_since_ms"]))
    else:
        print_line(f"released the delays of {topic}" if was_held else f"the delays of {topic} are not held")
