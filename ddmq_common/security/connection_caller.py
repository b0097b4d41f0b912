"""Whose a connection is: of the caller who has logged in, else of its certificate, else of its address."""

from __future__ import annotations

from ddmq_common.security.callers import Caller, CallerTable
from ddmq_common.security.certificate_names import CertificateNames
from ddmq_common.security.quotas import OverQuota


class ConnectionCaller:
    """The caller of one connection, which counts among the caller's connections until `leave`.

    `caller`: None if rights are off (`callers` None), or if a quota is exceeded. `host`: the client's
    address, without its port. `certificate_names`: of the client, once its handshake is complete.
    """

    __slots__ = ("_callers", "_token_id", "caller", "certificate_names", "host")

    def __init__(self, callers: CallerTable | None, host: str) -> None:
        self._callers = callers
        self._token_id = ""
        self.caller: Caller | None = None
        self.certificate_names: CertificateNames | None = None
        self.host = host

    def use_default(self) -> OverQuota | None:
        """Take the caller that the connection has without a login. Return a sentence, and change nothing, if
        that caller has too many connections."""
        callers = self._callers
        if callers is None:
            return None
        names = self.certificate_names
        caller = None if names is None else callers.of_certificate(names)
        return self._use_caller(caller or callers.at_address(self.host))

    def use_login(self, caller: Caller, token_id: str) -> OverQuota | None:
        """Take the caller who has logged in with a token. Return a sentence, and change nothing, if that
        caller has too many connections."""
        over = self._use_caller(caller)
        if over is None:
            self._token_id = token_id
        return over

    def _use_caller(self, caller: Caller) -> OverQuota | None:
        if caller is self.caller:
            return None
        over: OverQuota | None = caller.usage.count_connection()
        if over is None:
            self.leave()
            self.caller = caller
        return over

    @property
    def is_logged_in(self) -> bool:
        """Return whether the client has logged in with a token."""
        return self._token_id != ""

    @property
    def is_login_over(self) -> bool:
        """Return whether the token with which the client has logged in is not valid any more."""
        return self.is_logged_in and self._callers is not None and not self._callers.is_valid(self._token_id)

    def leave(self) -> None:
        """Count the connection no longer."""
        if self.caller is not None:
            self.caller.usage.connections -= 1
            self.caller = None
