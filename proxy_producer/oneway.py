"""sendOneway's call: the same path as sendSync, but what is answered goes to nobody.

The RPC layer reads a connection's next frames while a few oneway calls are open, and stops reading it
when there are more: that is the back pressure. So the inner call is ended when the message is through.
"""

from __future__ import annotations

from typing import Any

from ddmq_rpc.api import Call, Fault

_NOTHING = b""


class OnewayCall(Call):
    """Ends `call` whatever the answer is."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call
        self.args = call.args
        self.wire = call.wire
        self.received_at = call.received_at
        self.frame_bytes = call.frame_bytes
        self.peer = call.peer
        self.on_abandoned = None

    @property
    def open(self) -> bool:
        return self._call.open

    def reply(self, value: Any) -> None:
        self._call.reply_encoded(_NOTHING)

    def reply_encoded(self, result: bytes) -> None:
        self._call.reply_encoded(_NOTHING)

    def throw(self, exception: Any) -> None:
        self._call.reply_encoded(_NOTHING)

    def fault(self, kind: Fault, text: str) -> None:
        self._call.reply_encoded(_NOTHING)
