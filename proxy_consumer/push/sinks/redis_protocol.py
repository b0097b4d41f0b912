"""What the Redis sink speaks: commands as arrays of texts, and the one-line replies of those it may send.

None of its commands is answered with an array: one that comes is an error before anything of it is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy_consumer.push.sinks.receiving import Receiving

LINE_BYTES_MAX = 4_096
BULK_BYTES_MAX = 64 << 10
REPLY_BYTES_MAX = LINE_BYTES_MAX + BULK_BYTES_MAX
PIECES_MAX = 8


class RefusedError(Exception):
    """The server answered with an error; the connection is sound."""


class WrongReplyError(Exception):
    """What came is no reply to one of our commands."""


def encode_command(words: Sequence[bytes]) -> bytes:
    """A command as it goes over the wire."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += (b"$%d\r\n" % len(word), word, b"\r\n")
    return b"".join(parts)


def read_reply(receiving: Receiving) -> None:
    """Read one reply to its end. Raises RefusedError, WrongReplyError, UnboundedError, EOFError, OSError."""
    line = receiving.line(LINE_BYTES_MAX)
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RefusedError(rest.decode("utf-8", "replace"))
    if kind == b"$" and rest != b"-1":
        if not rest.isdigit() or len(rest) > 9 or int(rest) > BULK_BYTES_MAX:
            raise WrongReplyError(f"a text of {rest[:20]!r} bytes; allowed: {BULK_BYTES_MAX}")
        receiving.exactly(int(rest) + 2)
    elif kind not in (b"+", b":", b"$"):
        raise WrongReplyError(f"{line[:40]!r} is no reply to a command of ours")
    if receiving.left_over:
        raise WrongReplyError("more came than the reply")
