"""Replies: what a handler sends is seen exactly when its message is acknowledged, in one commit, or never.

    def handle(message):
        with message.replies() as tx:
            tx.send("invoices", make_invoice(message.body), key=message.key)

Nothing is sent before the block ends. Then the message's acknowledgement carries it all: the proxy stores the
messages and the end of this one together, once, whoever is killed when. An exception in the block sends
nothing. In an asyncio consumer it is `async with`; `send` is the same there, for it only takes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core import frames
from ddmq_client.core.selectors import make_placer
from ddmq_client.core.settings import TIMEOUT_MS_MAX, check
from ddmq_client.delays import When, when_of
from ddmq_client.errors import ClientError, InvalidMessageError, OptionError
from ddmq_client.idl.codes import FRAME_BYTES_MAX, Code
from ddmq_client.outgoing import OutgoingMessage, SendResult, ShardKey, describe_no_message, with_level
from ddmq_client.serializers import Serializer
from ddmq_client.serializers.bodies import serialize_message
from ddmq_client.wire.replying import encode_reply

MESSAGES_MAX = 4_096  # the highest limit that a proxy can have; 1,000 by default
OVERHEAD_BYTES = 1_024  # of a frame, besides the messages
_select_queue = make_placer("hash")


class Delivered(Protocol):
    """The methods of a received message that its replies use."""

    def ack(self) -> bool: ...


class Replying(Protocol):
    """Sends acknowledgements together with messages. `inline`: whether `reply` is a plain, blocking call."""

    inline: bool

    def reply(self, message: Any, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        """Acknowledge a message and send others, in one commit; return their results, or raise."""


class Replies:
    """Messages that are stored together with the acknowledgement of a message; created by `Message.replies`.

    results  after the block, one result per message in the order of the sends, with its location; empty if
             the answer was lost and no proxy remembered it when the request was repeated
    """

    def __init__(
        self,
        message: Delivered,
        settling: Replying,
        timeout_ms: int | None,
        serializer: Serializer | None = None,
    ) -> None:
        if timeout_ms is not None:
            check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        self.results: Sequence[SendResult] = ()
        self._message = message
        self._settling = settling
        self._serializer = serializer
        self._timeout_ms = timeout_ms
        self._encoded: list[bytes] = []
        self._bytes = 0
        self._state = "not entered"  # open, over

    @explain_arguments("docs/replies.md")
    def send(
        self,
        topic: str,
        body: object,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        shard_key: ShardKey | None = None,
        queue: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        level: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | None = None,
        times: int | None = None,
        catch_up: Literal["fire_once", "all", "skip"] | None = None,
    ) -> None:
        """Add one message. It is sent when the block ends. Arguments: see `Producer.send`.

        Raises OptionError and InvalidMessageError for a message that no proxy would accept, as far as this
        client can tell.
        """
        when = when_of(delay, deliver_at, cron, zone, every, times, catch_up, level)
        message = OutgoingMessage(topic, body, key, tags, with_level(properties, level), shard_key, queue)
        self._add_message(message, when)

    @explain_arguments("docs/client.md#sending", surplus="for a topic and a body: send(topic, body)")
    def send_message(self, message: OutgoingMessage) -> None:
        """Add one message, given as an object, which is sent when the block ends; see `send`.

        It must have no idempotency key: the lease ensures that all messages are stored once.
        """
        if not isinstance(message, OutgoingMessage):
            raise TypeError(describe_no_message(message))
        if message.idempotency_key is not None:
            raise OptionError(
                f"idempotency_key={message.idempotency_key!r} of a reply; allowed: None, it is stored once"
            )
        self._add_message(message, None)

    def _add_message(self, message: OutgoingMessage, when: When | None) -> None:
        if self._state != "open":
            raise ClientError(f"the block of these replies is {self._state}; allowed: to send in it")
        placement = _select_queue(message)
        if self._serializer is not None:
            message = serialize_message(self._serializer, message)
        encoded = encode_reply(message, placement, when)
        if len(self._encoded) >= MESSAGES_MAX:
            what = f"{MESSAGES_MAX} messages were sent with this acknowledgement"
            raise InvalidMessageError(f"{what}; allowed: no more", Code.ILLEGAL_MESSAGE)
        if self._bytes + len(encoded) > FRAME_BYTES_MAX - frames.HEAD_BYTES_MAX - OVERHEAD_BYTES:
            what = f"{self._bytes + len(encoded)} bytes with all fields in one acknowledgement"
            raise InvalidMessageError(f"{what}; allowed: about {FRAME_BYTES_MAX}", Code.ILLEGAL_MESSAGE)
        self._encoded.append(encoded)
        self._bytes += len(encoded)

    # --- the block

    def __enter__(self) -> Self:
        return self._open(inline=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends(error):
            self.results = self._settling.reply(self._message, self._encoded, self._timeout_ms)

    async def __aenter__(self) -> Self:
        return self._open(inline=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends(error):
            self.results = await self._settling.reply(self._message, self._encoded, self._timeout_ms)

    def _open(self, *, inline: bool) -> Self:
        if self._settling.inline is not inline:
            right = "async with" if inline else "with"
            raise ClientError(f"this message is of the other kind of consumer; allowed: {right} …replies()")
        if self._state != "not entered":
            raise ClientError(f"the block of these replies is {self._state}; it can be entered once")
        self._state = "open"
        return self

    def _ends(self, error: BaseException | None) -> bool:
        """Close the `with` block; return whether its messages must now be sent with the acknowledgement.

        `error`: the exception that left the block; in this case nothing is sent. A block without messages is
        acknowledged here like any other message, and nothing remains to be sent.
        """
        self._state = "over"
        if error is None and not self._encoded:
            self._message.ack()
        return error is None and bool(self._encoded)
