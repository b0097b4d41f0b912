"""`ddmq delay hold` and `release`: let the delayed messages of a topic wait beyond their due time."""

from __future__ import annotations

from typing import Any

import click

from ddmq.cli.admin_client import AdminClient, admin_options
from ddmq.cli.messages.waiting import held_text
from ddmq.cli.output import print_json, print_line
from ddmq.cli.values import TOPIC


@click.command("hold", short_help="Fire no delayed message of a topic.")
@click.argument("topic", type=TOPIC)
@admin_options
def hold_delays(topic: str, admin: AdminClient, as_json: bool) -> None:
    """Fire no delayed message of TOPIC until `ddmq delay release TOPIC`.

    This applies to every delay service within a second, and stays over restarts. Messages that become due
    wait; they can still be cancelled and rescheduled. Delay levels and retries are not held.
    """
    _set_held(admin, topic, hold=True, as_json=as_json)


@click.command("release", short_help="Fire the delayed messages of a topic again.")
@click.argument("topic", type=TOPIC)
@admin_options
def release_delays(topic: str, admin: AdminClient, as_json: bool) -> None:
    """Fire the delayed messages of TOPIC again. What is overdue fires at once, in the order of its due
    times."""
    _set_held(admin, topic, hold=False, as_json=as_json)


def _set_held(admin: AdminClient, topic: str, *, hold: bool, as_json: bool) -> None:
    was_held = admin.get("topics", topic).get("hold_delays")
    answer: dict[str, Any] = admin.post("topics", topic, body={"create": False, "hold_delays": hold})
    if as_json:
        print_json(answer)
    elif hold:
        print_line(held_text(topic, answer["delays_held_since_ms"]))
    else:
        print_line(f"released the delays of {topic}" if was_held else f"the delays of {topic} are not held")
