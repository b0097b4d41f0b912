"""Changes of a single delayed message, `POST /delay/messages/ID`: cancel, fire, reschedule,
hold and release.

A change is a delay command that a producer proxy stores, as for a client of the wire; so it survives every
crash once it is answered. The delay service that owns the message's shard decides its outcome.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddmq.server.admin.contract.bodies import DelayChangeBody
from ddmq.server.admin.producer.calls import CLIENT, IDL, ProducerCalls
from ddmq.server.http.connection import JSON
from ddmq.server.http.routing import AdminRequest, Text
from ddmq_client.idl.codes import OK_TEXT, DelayAction, DelayOutcome
from ddmq_common.errors import CallerError

ACTIONS = {
    "cancel": DelayAction.CANCEL, "fire": DelayAction.FIRE, "reschedule": DelayAction.RESCHEDULE,
    "hold": DelayAction.HOLD, "release": DelayAction.RELEASE,
}  # fmt: skip
ADDED_WORDS = {"hold": "held", "release": "released"}  # what ADDED means, by action; else "rescheduled"
OUTCOMES = {
    DelayOutcome.ADDED: "rescheduled", DelayOutcome.CANCELLED: "cancelled",
    DelayOutcome.ALREADY_FIRED: "fired", DelayOutcome.UNKNOWN: "unknown",
    DelayOutcome.OLDER_THAN_KEPT: "too_old", DelayOutcome.PENDING: "pending",
}  # fmt: skip
_NOT_FOUND = {
    "unknown": "there is no delayed message with this id",
    "too_old": "the delayed message was due so long ago that its outcome is no longer known",
}


def change_message(calls: ProducerCalls, request: AdminRequest) -> dict[str, Any] | Text:
    """Change one delayed message, and return the outcome; an answer with status 404 if no such message is
    known."""
    body: DelayChangeBody = request.body
    if (body.due_ms is None) + (body.delay_ms is None) != (1 if body.action == "reschedule" else 2):
        needed = "exactly one of them" if body.action == "reschedule" else "none"
        raise CallerError(f"due_ms and delay_ms with action {body.action!r}; allowed: {needed}")
    delay_id = request.path["id"]
    change = IDL.DelayMessage(
        topic=None, tags=None, action=int(ACTIONS[body.action]), uniqDelayMsgId=delay_id, dueMs=body.due_ms,
        delayMs=body.delay_ms, clientId=CLIENT,
    )  # fmt: skip
    result = calls.call("sendDelaySync", delayMessage=change, timeout=body.timeout_ms or 0)
    outcome = OUTCOMES[DelayOutcome(result.outcome)]
    if result.outcome == DelayOutcome.ADDED:
        outcome = ADDED_WORDS.get(body.action, outcome)
    row = {"id": delay_id, "outcome": outcome, "fired_ms": result.firedAtMs, "due_ms": result.dueMs}
    text = result.msg.decode("utf-8", "replace")
    if text != OK_TEXT:
        row["text"] = text
    if outcome in _NOT_FOUND:
        return Text(JSON, msgspec.json.encode({"error": f"{_NOT_FOUND[outcome]}: {delay_id}"} | row), 404)
    return row
