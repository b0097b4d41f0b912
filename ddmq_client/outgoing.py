"""What goes in and out of a producer: OutgoingMessage and SendResult."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddmq_client.errors import SendError
from ddmq_client.idl.codes import Durability

ShardKey = str | bytes | int


@dataclass(slots=True)
class OutgoingMessage:
    """One message to send.

    topic       letters, digits, `_ - % |`, at most 127 bytes
    body        bytes, or str (sent as UTF-8); not empty; 2 MiB at most unless the topic allows more
    key, tags   at most 255 characters each; empty counts as absent
    properties  text to text; no blank names or values, no reserved names
    shard_key   messages of one topic with the same shard key go to the same queue
    queue       queue number, taken modulo the topic's queue count; goes before every selector
    """

    topic: str
    body: bytes | str
    key: str | None = None
    tags: str | None = None
    properties: Mapping[str, str] | None = None
    shard_key: ShardKey | None = None
    queue: int | None = None


class SendResult:
    """The outcome for one message. Read only.

    code         the proxy's code: 0 stored; -1 where no proxy answered
    text         "OK", or what went wrong
    message_id   the id that the message keeps until it is consumed; None from proxies that tell none
    queue_id     queue it was stored in, None as above
    offset       its index in that queue, None as above
    durability   what the stored message survives (`ddmq_client.idl.codes.Durability`), None as above
    proxy        "host:port" of the proxy that answered
    error        None when stored; else the exception that `Producer.send` would raise
    """

    __slots__ = ("code", "durability", "error", "message_id", "offset", "proxy", "queue_id", "text")

    code: int
    text: str
    message_id: str | None
    queue_id: int | None
    offset: int | None
    durability: int | None
    proxy: str
    error: SendError | None

    def __init__(self) -> None:
        self.code = -1
        self.text = self.proxy = ""
        self.message_id = self.queue_id = self.offset = self.durability = self.error = None

    @property
    def durability_class(self) -> Durability | None:
        """`durability` as the enumeration."""
        return None if self.durability is None else Durability(self.durability)

    @property
    def stored(self) -> bool:
        """Confirmed as stored."""
        return self.error is None and self.code >= 0

    def raise_for_error(self) -> SendResult:
        """Itself when stored, else raises `error`."""
        if self.error is not None:
            raise self.error
        return self

    def __repr__(self) -> str:
        if self.error is not None:
            return f"SendResult(error={self.error!r})"
        where = f"queue_id={self.queue_id}, offset={self.offset}"
        return f"SendResult(code={self.code}, message_id={self.message_id!r}, {where})"
