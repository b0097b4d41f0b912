"""The bodies of the admin client's requests that send a message or change a delayed one. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ddmq_client.core.selectors import hash_of
from ddmq_client.delays import CancelOutcome, DelayStatus, When, to_datetime
from ddmq_client.errors import AdminError, OptionError
from ddmq_client.outgoing import OutgoingMessage, find_properties_error
from ddmq_client.wire.producing import find_text_error


def message_body(
    message: OutgoingMessage, when: When | None, times: int | None, level: int | None = None
) -> dict[str, Any]:
    """Return the request body of a message, without fields that are None. `times`, `level`: as `send` takes
    them.

    Raises OptionError for values that are not of their type.
    """
    content = message.body
    if not isinstance(content, bytes | str):
        raise OptionError(f"body is {type(content).__name__}; allowed: bytes or str")
    if error := find_properties_error(message.properties):
        raise OptionError(error)
    for name, value in (message.properties or {}).items():
        if error := find_text_error(name):
            raise OptionError(f"the name of a property {error}")
        if error := find_text_error(value):
            raise OptionError(f"the value of property {name!r} {error}")
    body: dict[str, Any] = {
        "topic": message.topic,
        "body": content if isinstance(content, str) else None,
        "body_base64": None if isinstance(content, str) else base64.b64encode(content).decode(),
        "key": message.key,
        "tags": message.tags,
        "properties": dict(message.properties) if message.properties else None,
        "queue": message.queue,
        "shard_key": None if message.shard_key is None else hash_of(message.shard_key),
        "idempotency_key": message.idempotency_key,
        "times": times,
        "level": level,
    }
    if when is not None:
        body |= _due_fields(when)
        body |= {"cron": when.cron, "zone": when.zone, "every_ms": when.period_ms, "catch_up": when.catch_up}
    return {name: value for name, value in body.items() if value is not None}


def change_body(action: str, when: When | None) -> dict[str, Any]:
    """Return the request body of a change of a delayed message. `when`: the new due time of a reschedule."""
    return {"action": action} | ({} if when is None else _due_fields(when))


def _due_fields(when: When) -> dict[str, Any]:
    fields = {"due_ms": when.due_ms, "delay_ms": when.delay_ms}
    return {name: value for name, value in fields.items() if value is not None}


def read_outcome(answer: Any) -> CancelOutcome:
    """Convert the answer about a change of a delayed message. Raises AdminError if it has no outcome."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("outcome"), str):
        raise AdminError(
            "the answer about a delayed message lacks 'outcome'; is the server of another release?"
        )
    fired_ms, due_ms = answer.get("fired_ms"), answer.get("due_ms")
    return CancelOutcome(
        DelayStatus.__members__.get(answer["outcome"].upper(), DelayStatus.PENDING),
        None if fired_ms is None else to_datetime(fired_ms),
        None if due_ms is None else to_datetime(due_ms),
        str(answer.get("text", "")),
    )
