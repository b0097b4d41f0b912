"""The bodies of messages that are sent by way of a serializer."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddmq_client.callables import check_result
from ddmq_client.errors import InvalidMessageError
from ddmq_client.idl.codes import Code
from ddmq_client.outgoing import OutgoingMessage
from ddmq_client.serializers import Serializer


def serialize_message(serializer: Serializer, message: OutgoingMessage) -> OutgoingMessage:
    """Return the message with its value serialized as the body. Raises InvalidMessageError if that fails."""
    try:
        body: Any = serializer.serialize(message.body)
        check_result("serialize", body, ends=False)
    except Exception as error:
        what = f"the {type(message.body).__name__} to be sent to {message.topic!r} cannot be serialized"
        raise InvalidMessageError(f"{what}: {type(error).__name__}: {error}", Code.ILLEGAL_MESSAGE) from error
    if not isinstance(body, bytes):
        kind = type(serializer).__name__
        text = f"{kind}.serialize returned {type(body).__name__}; allowed: bytes"
        raise InvalidMessageError(text, Code.ILLEGAL_MESSAGE)
    return dataclasses.replace(message, body=body)
