"""The values of messages that were received by way of a serializer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ddmq_client.application.handler_errors import HandlerErrors
from ddmq_client.callables import check_result
from ddmq_client.errors import OptionError
from ddmq_client.received import Message
from ddmq_client.serializers import Serializer

_log = logging.getLogger("ddmq_client.consumer")


def deserialize_messages(
    serializer: Serializer, messages: Sequence[Message], errors: HandlerErrors
) -> list[Message]:
    """Set the `value` of each message; return the messages that have one.

    A message without one is settled: a dead letter after a ValueError, failed after any other exception.
    """
    usable: list[Message] = []
    for message in messages:
        try:
            message.value = serializer.deserialize(message.body)
            message.serializer = serializer
            check_result("deserialize", message.value)
        except OptionError as error:
            _log.error("%r: %s", message, error)
            message.fail(reason=error)
        except ValueError as error:
            _log.error("%r goes to the dead letters: its body cannot be deserialized: %s", message, error)
            message.dead_letter(reason=f"the body cannot be deserialized: {error}")
        except Exception as error:
            errors.report_error([message], error, "serializer")
            message.fail(reason=error)
        else:
            usable.append(message)
    return usable
