"""The client's errors, by what the application may do next.

ClientError
    OptionError             a wrong argument or setting; nothing was sent
    ClosedError             the producer or consumer has been closed, the transaction has ended
    SendError               one message was not confirmed
        InvalidMessageError     the message is wrong as it stands: sending it again changes nothing
        NoSuchTopicError        the topic is unknown there
            NotAllowedError         this client has not logged in, or its identity lacks the right
        NotStoredError          certainly not stored: safe to send again
            ThrottledError          refused by a rate limit or a bound of the proxy (code 15)
            BusyError               refused by a bound of this client; nothing was sent
            LoginError              the login was rejected, or impossible; a PullError, too
        UnknownOutcomeError     may or may not be stored: sending it again may make a duplicate
    LeaseOverError          an acknowledgement with messages came too late: none of them is stored
    PullError               the consumer proxy refused the pull
        SubscriptionError       a stated filter or order key is not the subscription's; an OptionError, too
    AdminError              the admin API did not do what it was asked for
        NotFoundError           no such topic, group, message or delayed message
        RejectedError           the request is wrong: sending it again changes nothing
        AccessError             the server does not serve this client, or not under this name
        UnavailableError        nothing was changed: try again later
        UnknownChangeError      the change may or may not have been made
    TransactionError        a transaction did not end as it was told to
        NotCommittedError       certainly not committed: none of its messages is seen by anybody
        UnknownEndError         committed or not: its check will settle it

Every text says what was wrong and with which value; what a proxy said is one line of at most 1,000 printable
characters in it. `code` is the proxy's code (see ddmq_client.idl.codes),
None where no answer of a proxy is behind the error. `proxy` is "host:port", "" where none was reached.
"""

from __future__ import annotations

from ddmq_client.printable import printable


class ClientError(Exception):
    """The base class of the errors that this library raises."""


class OptionError(ClientError, ValueError):
    """An argument or setting is out of its range; the text names it, its value and the allowed values."""


class ClosedError(ClientError):
    """The producer or consumer has been closed, or the transaction has ended."""


class ProxyError(ClientError):
    """A proxy refused a request, or did not carry it out. `code`: its error code, or None."""

    def __init__(self, text: str, code: int | None = None, proxy: str = "") -> None:
        self.text = printable(text)
        super().__init__(self.text)
        self.code = code
        self.proxy = proxy


class SendError(ProxyError):
    """A message was not confirmed as stored."""

    def __str__(self) -> str:
        where = f" by {self.proxy}" if self.proxy else ""
        return f"{self.text} (code {self.code}{where})" if self.code is not None else self.text


class InvalidMessageError(SendError):
    """The message is invalid (codes 11, 18, 19, 30 to 38); sending it again changes nothing."""


class NoSuchTopicError(SendError):
    """The topic does not exist, or is not allowed for this client (codes 13, 14)."""


class NotAllowedError(NoSuchTopicError):
    """The client has not logged in, or its identity lacks the right that the text names (code 13).

    The topic may exist or not.
    """


class NotStoredError(SendError):
    """The message is certainly not stored; it is safe to send it again, later or to another proxy."""


class ThrottledError(NotStoredError):
    """The message was refused by a rate limit, or because the proxy is at a bound (code 15)."""


class BusyError(NotStoredError):
    """The message was refused by a bound of this client (connections or sends in flight).

    Nothing was sent.
    """


class UnknownOutcomeError(SendError):
    """The message may or may not be stored.

    No answer came in time, or the backend does not know (codes 10, 12).
    """


class LeaseOverError(ProxyError):
    """The message's lease has ended: none of its replies is stored, and another consumer gets the message.

    The application need not do anything.
    """


class PullError(ProxyError):
    """The consumer proxy refused the pull: the request is invalid or not allowed."""


class LoginError(NotStoredError, PullError):
    """The proxy rejected the login of this client, or the client cannot log in; nothing was sent.

    The token is not known, has expired or was revoked, cannot be read, or would be readable by others. It is
    read again for each connection, so that a new token is used without a restart.
    """


class SubscriptionError(PullError, OptionError):
    """The consumer states a filter or an order key that cannot be used, or that the group's subscription does
    not have; the text names both."""


class AdminError(ClientError):
    """The admin API did not carry out a request; the text is the server's sentence.

    `status` is the HTTP status, None if there was no answer; `server` is "host:port".
    """

    def __init__(self, text: str, status: int | None = None, server: str = "") -> None:
        self.text = printable(text)
        super().__init__(self.text)
        self.status = status
        self.server = server


class NotFoundError(AdminError):
    """The named topic, group, message or delayed message does not exist (404)."""


class RejectedError(AdminError):
    """The request is invalid (400, 405, 413): sending it again changes nothing."""


class AccessError(AdminError):
    """The server does not serve this client, or not under this host name (401, 403)."""


class UnavailableError(AdminError):
    """No server answered, or it cannot answer now (503). Nothing was changed; try again later."""


class UnknownChangeError(AdminError):
    """No answer came in time (504, or the connection ended): the change may or may not have been made."""


class TransactionError(ProxyError):
    """A transaction did not end as requested; `transaction_id` names it."""

    def __init__(self, text: str, transaction_id: str, code: int | None = None, proxy: str = "") -> None:
        super().__init__(text, code, proxy)
        self.transaction_id = transaction_id


class NotCommittedError(TransactionError):
    """The transaction is certainly not committed: none of its messages is visible.

    Undo the local work that belongs to it, unless that has happened. It may be repeated in another
    transaction.
    """


class UnknownEndError(TransactionError):
    """No proxy has confirmed the end of the transaction in time: it may be as requested or still open.

    The application need not do anything: the check of its producer group will settle it.
    """
