"""How a call can end without an answer. Pure; raised by the connections of both shells.

The verdict says what holds for a message that was in the call: a frame that was not written whole cannot have
been taken by the proxy (NOT_SENT); after that nobody knows (LOST, TIMED_OUT).
"""

from __future__ import annotations

from ddmq_client.core.verdicts import CallVerdict


class CallFailed(Exception):
    """No answer came."""

    def __init__(self, verdict: CallVerdict, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict
        self.text = text


def not_connected(name: str, error: object) -> CallFailed:
    """No connection was made."""
    return CallFailed(CallVerdict.NOT_SENT, f"cannot connect to {name}: {error}")


def not_written(name: str, error: object) -> CallFailed:
    """The request did not leave whole."""
    return CallFailed(CallVerdict.NOT_SENT, f"request not written to {name}: {error}")


def lost(name: str, error: object) -> CallFailed:
    """The connection ended, or what came was no answer, after the request had left."""
    return CallFailed(CallVerdict.LOST, f"no answer from {name}: {error}")


def timed_out(name: str, waited_s: float) -> CallFailed:
    """No answer in time."""
    return CallFailed(CallVerdict.TIMED_OUT, f"no answer from {name} within {waited_s * 1000:.0f} ms")
