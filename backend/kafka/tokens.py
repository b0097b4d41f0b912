"""OAUTHBEARER tokens from a function of the user's own (`token_provider` in conf/backend.yaml).

All librdkafka clients of a process share one TokenProvider, so that one call of the function renews the
token of all of them. Clients request a token when they are created and at four fifths of its lifetime, in
threads of librdkafka. The function may therefore block, but it must be safe to call from any thread.

A client whose first request fails delays its creator for ten seconds, so the engine fetches a token before it
creates a client (`fetch`). Tokens are never logged: `mask` removes them from texts.
"""

from __future__ import annotations

import importlib
import time
from _thread import allocate_lock
from collections.abc import Callable
from functools import cache
from typing import Any

from ddmq_common.errors import ConfigError, RemoteError

RENEW_BELOW = 0.3  # the share of a token's lifetime; with less remaining, a client gets a new one
MILLISECONDS_FROM = 100_000_000_000  # no time in seconds is that large before the year 5138
SLOW_S = 5.0  # a call that takes longer is stated as the reason for a wait
_MASKED = "***"


class TokenProvider:
    """Caches the current access token, and calls the user's function `name` (MODULE:FUNCTION) for a new one.

    `failure`: why there is no token; empty if the last call returned one.
    """

    def __init__(
        self, name: str, function: Callable[[], Any], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.failure = ""
        self._name = name
        self._function = function
        self._wall_clock = wall_clock
        self._answer: tuple[Any, ...] = ()
        self._renew_at = 0.0
        self._called_at: float | None = None
        self._lock = allocate_lock()  # one call at a time, from native threads

    def __call__(self, config: str | None = None) -> tuple[Any, ...]:
        """Return a token as confluent_kafka's `oauth_cb` must: (token, expiry, …). Raises RemoteError."""
        self.fetch()
        return self._answer

    def fetch(self) -> None:
        """Renew the token if necessary. Raises RemoteError with the reason if that fails."""
        with self._lock:
            if self._wall_clock() < self._renew_at:
                return
            self._called_at = self._wall_clock()
            try:
                answer = self._function()
            except Exception as error:  # whatever the user's function raises
                reason = str(error).strip() or "no reason given"
                self.failure = self.mask_token(f"{self._name}: {type(error).__name__}: {reason}")
            else:
                self._accept(answer)
            finally:
                self._called_at = None
            if self.failure:
                raise RemoteError(f"the token provider {self.failure}")

    def _accept(self, answer: Any) -> None:
        error = self._find_error(answer)
        self.failure = f"{self._name}: {error}" if error else ""
        if not error:
            now = self._wall_clock()
            self._answer = (answer[0], float(answer[1]), *answer[2:])
            self._renew_at = answer[1] - RENEW_BELOW * (answer[1] - now)

    def _find_error(self, answer: Any) -> str:
        """Return why the token function's result is invalid, without quoting the result; "" if it is
        valid."""
        if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4:
            return f"it returned {type(answer).__name__}; allowed: (token, expiry in seconds since 1970)"
        token, expiry = answer[:2]
        if not isinstance(token, str) or not token:
            return f"the token is {type(token).__name__ if token else 'empty'}; allowed: a text"
        if isinstance(expiry, bool) or not isinstance(expiry, int | float):
            return f"the expiry is {type(expiry).__name__}; allowed: seconds since 1970"
        if expiry >= MILLISECONDS_FROM:
            return f"the expiry is {expiry:.0f}, which are milliseconds; allowed: seconds since 1970"
        if expiry <= self._wall_clock():
            return f"the expiry is {expiry:.0f}, which is over; allowed: seconds since 1970, later than now"
        return ""

    @property
    def waiting_reason(self) -> str:
        """Return why clients have no token: the last failure, or a call that takes long; or ""."""
        called_at = self._called_at
        if called_at is not None and self._wall_clock() - called_at >= SLOW_S:
            return f"{self._name} has not returned for {self._wall_clock() - called_at:.0f} s"
        return self.failure

    def mask_token(self, text: str) -> str:
        """Mask the current token in a text."""
        return text.replace(self._answer[0], _MASKED) if self._answer else text


@cache
def load_provider(name: str) -> TokenProvider:
    """Return the process's provider for MODULE:FUNCTION. Raises ConfigError if it cannot be loaded."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        _reject_provider(name, "MODULE:FUNCTION")
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:  # the module may raise anything
        reason = f"{type(error).__name__}: {error}"
        _reject_provider(name, f"a module that Python finds and loads here ({reason}); see PYTHONPATH")
    for attribute_name in attribute.split("."):
        target = getattr(target, attribute_name, None)
    if not callable(target):
        _reject_provider(name, f"a function; {module_name} has none of that name")
    return TokenProvider(name, target)


def _reject_provider(name: str, allowed: str) -> None:
    raise ConfigError(f"kafka: token_provider is {name}; allowed: {allowed}")
