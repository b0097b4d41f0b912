"""The whole history of the messages that a broken rule is about, in the order of time."""

from __future__ import annotations

from tests.crash.mixed.history import Ending, Given, History, Said
from tests.crash.mixed.rules import Violation

LINES_MAX = 120


def story(history: History, ending: Ending, violation: Violation) -> str:
    """A line an event; times in seconds from the first send of the run."""
    bodies, group = set(violation.bodies), violation.group
    start = min((each.at for each in history.sent), default=0.0)
    lines: list[tuple[float, str]] = []
    for sent in history.sent:
        if sent.body in bodies:
            lines.append((sent.at, f"sent {sent.body} key {sent.key}: code {sent.code}, place {sent.place}"))
    for given in history.given:
        if given.body in bodies and group in ("", given.group):
            lines.append((given.read, _given(given, start)))
    for said in history.said:
        if said.given.body in bodies and group in ("", said.given.group):
            lines.append((said.at, _said(said, start)))
    for letter in ending.letters:
        if letter.body in bodies and group in ("", letter.group):
            lines.append((letter.at, f"dead letter: {letter}"))
    if lines:
        first, last = min(at for at, _ in lines) - 1, max(at for at, _ in lines) + 1
        lines += [(each.at, f"killed: {each.process} life {each.life}") for each in history.ended]
        lines += [
            (each.at, f"lost: {each.proxy} {each.group} {each.topic}/{each.queue}")
            for each in ending.losses
            if group in ("", each.group)
        ]
        lines = [(at, text) for at, text in lines if first <= at <= last]
    told = [f"    {at - start:9.3f}  {text}" for at, text in sorted(lines)[:LINES_MAX]]
    told += [f"    in the log: {row}" for row in ending.rows if row.body in bodies]
    return "\n".join(told)


def _given(given: Given, start: float) -> str:
    return (
        f"given {given.number} {given.body} at {given.qid}/{given.offset} by {given.proxy} life {given.life} "
        f"to {given.client}, lease {given.lease}, asked {given.asked - start:.3f}"
    )


def _said(said: Said, start: float) -> str:
    what = "acknowledged" if said.ack else "failed"
    answer = "no answer" if said.answered is None else f"answered {said.answered - start:.3f}"
    return f"{what} {said.given.number} {said.given.body} at {said.proxy}: {answer}"
