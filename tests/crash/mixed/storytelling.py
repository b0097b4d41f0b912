"""The whole history of the messages that a broken rule is about, in the order of time."""

from __future__ import annotations

from tests.crash.mixed.history import Delivery, Ending, History, Settlement
from tests.crash.mixed.rules import Violation

LINES_MAX = 120


def story(history: History, ending: Ending, violation: Violation) -> str:
    """A line an event; times in seconds from the first send of the run."""
    bodies, group = set(violation.bodies), violation.group
    start = min((each.at for each in history.sent), default=0.0)
    lines: list[tuple[float, str]] = []
    for sent in history.sent:
        if sent.body in bodies:
            lines.append(
                (sent.at, f"sent {sent.body} key {sent.key}: code {sent.code}, place {sent.location}")
            )
    for delivery in history.deliveries:
        if delivery.body in bodies and group in ("", delivery.group):
            lines.append((delivery.read, _describe_delivery(delivery, start)))
    for settlement in history.settlements:
        if settlement.delivery.body in bodies and group in ("", settlement.delivery.group):
            lines.append((settlement.at, _describe_settlement(settlement, start)))
    for letter in ending.letters:
        if letter.body in bodies and group in ("", letter.group):
            lines.append((letter.at, f"dead letter: {letter}"))
    if lines:
        first, last = min(at for at, _ in lines) - 1, max(at for at, _ in lines) + 1
        lines += [(each.at, f"killed: {each.process} life {each.life}") for each in history.kills]
        lines += [
            (each.at, f"lost: {each.proxy} {each.group} {each.topic}/{each.queue}")
            for each in ending.losses
            if group in ("", each.group)
        ]
        lines = [(at, text) for at, text in lines if first <= at <= last]
    story_lines = [f"    {at - start:9.3f}  {text}" for at, text in sorted(lines)[:LINES_MAX]]
    story_lines += [f"    in the log: {row}" for row in ending.rows if row.body in bodies]
    return "\n".join(story_lines)


def _describe_delivery(delivery: Delivery, start: float) -> str:
    return (
        f"given {delivery.number} {delivery.body} at {delivery.qid}/{delivery.offset} "
        f"by {delivery.proxy} life {delivery.life} "
        f"to {delivery.client}, lease {delivery.lease}, asked {delivery.requested - start:.3f}"
    )


def _describe_settlement(settlement: Settlement, start: float) -> str:
    what = "acknowledged" if settlement.ack else "failed"
    answer = "no answer" if settlement.answered is None else f"answered {settlement.answered - start:.3f}"
    return f"{what} {settlement.delivery.number} {settlement.delivery.body} at {settlement.proxy}: {answer}"
