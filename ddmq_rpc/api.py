"""The interface between a service and the RPC layer: a Call is answered once, now or later, from the hub.

A handler is a plain function `handler(call)`. It must not block and needs no greenlet: it answers at
once, or keeps the call and whoever finishes the work answers it. Strings arrive as bytes (nobody has
paid for decoding them, or checked that they are UTF-8); values to encode may be str or bytes.

A handler that raises is answered "internal error" (6), counted and logged. A call that is answered
after its client has gone is counted and dropped. At most one call per connection is open, or
a bounded number of oneway ones; the next frame of that connection is parsed when the answer has left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import ModuleType
from typing import Any, NamedTuple

from mypy_extensions import mypyc_attr

from ddmq_common.security.callers import Caller


class Wire(IntEnum):
    """The Thrift protocol of a call. Its answer uses the same one."""

    COMPACT = 0
    BINARY = 1


class ErrorKind(IntEnum):
    """The Thrift application exceptions that this server sends."""

    UNKNOWN_METHOD = 1
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


@mypyc_attr(allow_interpreted_subclasses=True)
class Call(ABC):
    """A received RPC request, with everything that its handler needs to answer it.

    `args` has the method's arguments as attributes; absent ones are None or the IDL's default.
    """

    __slots__ = ("args", "caller", "frame_bytes", "on_abandoned", "peer", "received_at", "wire")

    args: Any
    wire: Wire
    received_at: float  # monotonic seconds when the frame was complete
    frame_bytes: int
    peer: str  # "127.0.0.1:40112"
    caller: Caller | None  # whose call it is; None: rights are off, or the server calls itself
    on_abandoned: Callable[[Call], None] | None  # runs on the hub when the client goes before the answer

    @property
    @abstractmethod
    def open(self) -> bool:
        """Return whether the call has not been answered and its client is still connected."""

    @abstractmethod
    def reply(self, value: Any) -> None:
        """Answer with the method's result: a struct, list, bool … as the IDL says."""

    @abstractmethod
    def reply_encoded(self, result: bytes) -> None:
        """Answer with an encoded result struct (from the `success` field to the stop byte) in protocol
        `self.wire`.
        """

    @abstractmethod
    def throw(self, exception: Any) -> None:
        """Answer with an exception struct that the method declares."""

    @abstractmethod
    def reply_error(self, kind: ErrorKind, text: str) -> None:
        """Answer with a Thrift application exception."""


Handler = Callable[[Call], None]


class MethodRule(NamedTuple):
    """The rights that calls of one method need, checked before its handler gets a call.

    `find_missing`: returns the sentence about a missing right, or None. `reject`: answers with that sentence.
    `narrow`: returns the call that the handler gets, without the elements that are forbidden; None if it has
    answered. Its second argument records the sentence about each such element. `waits`: the call may wait for
    messages, and is checked again when rights change. `finishes`: the call ends work that is open, so it
    counts, but no quota rejects it. `reject_over`: answers a call over a quota; None: `reject` does, which
    then gets an OverQuota.
    """

    find_missing: Callable[[Call], str | None]
    reject: Callable[[Call, str], None]
    narrow: Callable[[Call, Callable[[str], None]], Call | None] | None = None
    waits: bool = False
    finishes: bool = False
    reject_over: Callable[[Call, str], None] | None = None


class Service(NamedTuple):
    """One Thrift service and its handlers. `idl`: the thriftpy2 module; `name`: the service's name in it.

    Methods of the IDL without a handler are answered with "unknown method". Handlers in `oneway` get calls
    whose answer is dropped. `on_closed` is called on the hub with the `peer` of each connection that has
    closed. `rules`: by method; each handler must have one if there are any.
    """

    idl: ModuleType
    name: str
    handlers: Mapping[str, Handler]
    on_closed: Callable[[str], None] | None = None
    rules: Mapping[str, MethodRule] | None = None
