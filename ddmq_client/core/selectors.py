"""Which queue a message goes to, said in the wire's two numbers. Pure.

The client does not know how many queues a topic has; it states a number and the proxy takes it modulo
their count: `partition_id` >= 0 names a queue, -1 means "by hash_id", -2 "any queue".
A selector is "hash" (the default: by shard key, any queue without one), "key" (by the message's key),
"random" (any queue, shard keys ignored), or a callable that receives the message and returns a number
(taken modulo the queue count), or None for any queue.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from ddmq_client.callables import check_function, check_result
from ddmq_client.errors import OptionError
from ddmq_client.outgoing import OutgoingMessage, ShardKey

Selector = Literal["hash", "key", "random"] | Callable[[OutgoingMessage], int | None]

_I64 = 1 << 63
_QUEUE_MAX = (1 << 31) - 1


class Placement(NamedTuple):
    """The two numbers that select a message's queue on the wire."""

    partition_id: int
    hash_id: int


ANY = Placement(-2, 0)
_Placer = Callable[[OutgoingMessage], Placement]


def hash_of(shard_key: ShardKey) -> int:
    """Return a stable number for a shard key: an int unchanged, text and bytes by CRC-32."""
    if isinstance(shard_key, int):
        if -_I64 <= shard_key < _I64:
            return shard_key
        raise OptionError(f"shard_key={shard_key} is not a signed 64-bit number")
    if not isinstance(shard_key, str | bytes):
        raise OptionError(f"shard_key={shard_key!r}; allowed: text, bytes, or a whole number")
    data = shard_key.encode("utf-8", "surrogatepass") if isinstance(shard_key, str) else shard_key
    return zlib.crc32(data)


def make_placer(selector: Selector) -> _Placer:
    """Return the function that selects queues for this selector. Raises OptionError for an unknown one."""
    if callable(selector):
        check_function("selector", selector)
        return _make_own_placer(selector)
    placers: dict[str, _Placer] = {"hash": _by_shard_key, "key": _by_key, "random": _at_random}
    if not isinstance(selector, str) or selector not in placers:
        raise OptionError(f"selector={selector!r}; allowed: {', '.join(placers)}, or a callable")
    return placers[selector]


def _by_shard_key(message: OutgoingMessage) -> Placement:
    if message.queue is not None:
        return _to_placement(message.queue)
    return ANY if message.shard_key is None else Placement(-1, hash_of(message.shard_key))


def _by_key(message: OutgoingMessage) -> Placement:
    if message.queue is not None or message.shard_key is not None or not message.key:
        return _by_shard_key(message)
    return Placement(-1, hash_of(message.key))


def _at_random(message: OutgoingMessage) -> Placement:
    return ANY if message.queue is None else _to_placement(message.queue)


def _make_own_placer(selector: Callable[[OutgoingMessage], int | None]) -> _Placer:
    def select_queue(message: OutgoingMessage) -> Placement:
        if message.queue is not None:
            return _to_placement(message.queue)
        try:
            number = selector(message)
            check_result("the selector", number)
        except Exception as error:  # this message's own error; the others are sent
            what = f"the selector failed for a message to {message.topic!r}: {error!r}"
            raise OptionError(f"{what}; allowed: a whole number, or None for any queue") from error
        return ANY if number is None else _to_placement(number)

    return select_queue


def _to_placement(number: int) -> Placement:
    if not isinstance(number, int) or not 0 <= number <= _QUEUE_MAX:
        raise OptionError(f"queue {number!r} is not a whole number from 0 to {_QUEUE_MAX}")
    return Placement(number, 0)
