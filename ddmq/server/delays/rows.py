"""Describes delayed messages for people and programs."""

from __future__ import annotations

from typing import Any

from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_common import delivery
from ddmq_common.delays.command import DelayCommand, decode_command
from ddmq_common.errors import DamagedError
from ddmq_common.plain_text import body_fields
from delay_service.core.held_messages import is_held_ms, plain_due_ms
from delay_service.core.occurrences import occurrence_id
from delay_service.store.port import Pending

CHRONOS = FROM_CHRONOS.encode()
CONTENT_TEXTS = ("repeats", "key", "tags")  # of a row; empty if the message has none


def describe_message(message: Pending, *, with_body: bool = False) -> dict[str, Any]:
    """Return a pending message as a row for people and programs."""
    row: dict[str, Any] = {
        "due_ms": plain_due_ms(message.due_ms), "topic": message.topic, "occurrence": message.occurrence,
        "message_id": message.message_id.hex(), "born_ms": message.born_ms,
    }  # fmt: skip
    if is_held_ms(message.due_ms):
        row["held"] = True
    try:
        command = decode_command(message.command)
        content = delivery.decode(message.delivery)
    except DamagedError as error:
        return row | {"id": "", "error": str(error)}
    row["id"] = occurrence_id(command, 0)
    row |= _describe_repeats(command)
    row["key"] = content.key.decode("utf-8", "replace")
    row["tags"] = content.tag.decode("utf-8", "replace")
    row["body_bytes"] = len(content.value)
    if not with_body:
        return row | {"preview": content.value[:80].decode("utf-8", "replace")}
    row["properties"] = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, value in content.properties.items()
        if name != CHRONOS  # not the sender's: it is put on where consumers of old clients look for it
    }
    return row | body_fields(content.value)


def _describe_repeats(command: DelayCommand) -> dict[str, Any]:
    """Return how a message repeats, as numbers and as words; the words are empty for a single delivery."""
    schedule = command.schedule
    facts: dict[str, Any] = {"kind": command.kind}
    if schedule is None:
        words = {3: f"every {command.interval_s} s", 4: f"in steps of {command.interval_s}^n s"}.get(
            command.kind, ""
        )
        return facts | {"repeats": f"{words}, {command.times} times" if words else ""}
    words = f"cron {schedule.cron} in {schedule.zone}" if schedule.cron else ""
    if schedule.repeat:
        often = "without end" if schedule.repeat < 0 else f"{schedule.repeat + 1} times"
        words = ", ".join(filter(None, (words, f"every {schedule.period_ms / 1000:g} s {often}")))
    if schedule.occurrences_max and words:
        words += f", {schedule.occurrences_max} in all"
    return facts | {"repeats": words}
