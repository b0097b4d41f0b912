"""The consumer service's call that acknowledges one message and sends others: requests to bytes, answers to
results."""

from __future__ import annotations

from typing import Any

from ddmq_client.core.frames import FrameError
from ddmq_client.core.replying import REPLY, ReplyAnswer, ReplyTo
from ddmq_client.core.selectors import Placement
from ddmq_client.delays import When
from ddmq_client.idl import consumer as idl
from ddmq_client.idl.codes import OK_TEXT, Code
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.printable import printable
from ddmq_client.transactions import with_due_time
from ddmq_client.wire.codec import Specs, decode, encode
from ddmq_client.wire.producing import RESULT_NAMES, answer_at, encoded_message


class _Response:
    success: ReplyAnswer | None = None


_specs = Specs()
_MESSAGE = _specs.register_struct(idl.ReplyMessage)
_CONTEXT = _specs.register_struct(idl.Context)
_REQUEST = _specs.register_struct(idl.ReplyRequest)
_specs.register_struct(idl.ReplyResult, SendResult, RESULT_NAMES)
_specs.register_struct(idl.ReplyResponse, ReplyAnswer, {"msg": "text"})
_RESPONSE = _specs.register_struct(idl.ConsumerService.reply_result, _Response)


def encode_reply(message: OutgoingMessage, placement: Placement, when: When | None) -> bytes:
    """Encode a ReplyMessage. Raises InvalidMessageError for a message that no proxy would accept."""
    wire: Any = _MESSAGE[0]()
    wire.dueTimes = True if when is not None else None
    return encoded_message(wire, _MESSAGE, with_due_time(message, when), placement)


def reply_request(to: ReplyTo, client_id: str) -> bytes:
    """Encode a ReplyRequest without messages and timeout, which frames.reply_args adds."""
    wire: Any = _REQUEST[0]()
    wire.context = context = _CONTEXT[0]()
    context.groupId, context.topic, context.qid = to.group, to.topic, to.queue
    wire.offset, wire.lease, wire.clientId = to.offset, to.lease, client_id
    return encode(wire, _REQUEST)


def read_reply(payload: bytes, sequence_id: int) -> ReplyAnswer:
    """Decode the answer to a reply.

    Raises ProxyCallError, or FrameError if the bytes do not answer this request.
    """
    answer: ReplyAnswer | None = decode(payload, answer_at(payload, REPLY, sequence_id), _RESPONSE).success
    if answer is None:
        raise FrameError("answer without a result")
    answer.text = printable(answer.text or "")
    answer.results = answer.results or ()
    for result in answer.results:
        result.code, result.text = int(Code.OK), OK_TEXT
    return answer
