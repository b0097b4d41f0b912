"""Put a proxy's rejection into the words of the application: names of arguments, not of wire fields. Pure.

A proxy answers one sentence to everybody, `FAILED: what is wrong, with its value; allowed: what is`. Some of
its words are those of the wire, or of the delay dialects that users of other systems write; proxies of
earlier releases use more of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ddmq_client.idl.codes import CONSUMER_PORT, FAILED_PREFIX, PRODUCER_PORT

_Rewrite = str | Callable[[re.Match[str]], str]
_WORDS: tuple[tuple[re.Pattern[str], _Rewrite], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"^uniqDelayMsgId is ", "the delay id is "),
        (r" in uniqDelayMsgId is ", " in the delay id is "),
        (r"^dueMs is (-?\d+), second -?\d+", r"the due time is epoch millisecond \1"),
        (r"^the delay is ", "delay is "),
        (r"^the period is ((?:-?\d+ ?\w+)) with repeat -?\d+", r"every is \1"),
        (r"^the period is ", "every is "),
        (
            r"^repeat is (-?\d+); allowed: -1 \(without end\) to (\d+)",
            lambda match: f"times is {int(match[1]) + 1}; allowed: 1 to {int(match[2]) + 1}",
        ),
        (r"^the occurrences are (-?\d+); allowed: 0 \(no cap\) to ", r"times is \1; allowed: 1 to "),
        (r" bytes in field 7 or 3$", " bytes"),
    )
)


def in_arguments(text: str) -> str:
    """Return a rejection's text without the wire's prefix, with the names of `Producer.send`'s arguments."""
    text = text.removeprefix(FAILED_PREFIX).lstrip()
    for pattern, words in _WORDS:
        text = pattern.sub(words, text, count=1)
    return text


_RIGHT_MISSING = " lacks the right `"
_LOGIN_MISSING = f"a connection without an identity{_RIGHT_MISSING}"
_HOW_TO_LOG_IN = (
    "; log in with a token (token_file=, DDMQ_TOKEN_FILE), a client certificate (tls=, DDMQ_CERT)"
    " or a profile (profile=, DDMQ_PROFILE)"
)


def is_right_missing(text: str) -> bool:
    """Return whether a rejection states that the caller lacks a right."""
    return _RIGHT_MISSING in text


def explain_missing_login(text: str) -> str:
    """Add how to log in to a rejection whose reason is that the caller has not logged in."""
    return text + _HOW_TO_LOG_IN if _LOGIN_MISSING in text else text


_PRODUCER_METHODS = (b"sendSync", b"sendBatch", b"sendDelaySync")
_CONSUMER_METHODS = (b"pull", b"submit", b"fetch", b"ack", b"getConsumeStats")


def explain_unknown_method(method: bytes) -> str:
    """Return the probable cause of an answer that says that a server does not know `method`: a wrong port.

    Return "" for a method that proxies of the first release do not know either.
    """
    if method in _PRODUCER_METHODS:
        return (
            "; this seems to be a consumer port: check the address,"
            f" producer proxies listen on {PRODUCER_PORT} by default"
        )
    if method in _CONSUMER_METHODS:
        return (
            "; this seems to be a producer port: check the address,"
            f" consumer proxies listen on {CONSUMER_PORT} by default"
        )
    return ""
