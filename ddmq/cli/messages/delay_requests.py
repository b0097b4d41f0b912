"""Requests that change delayed messages: over the admin port, or over the port of a producer proxy.

Both do the same. The producer port is quicker with many messages, because the server limits the processor
time of the admin port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, UnknownResourceError
from ddmq.cli.messages.sending import Patience, client_of, in_options
from ddmq_client import CancelOutcome, ClientError, DelayStatus, Producer
from ddmq_client.delays import to_datetime, when_of

CANCEL, RESCHEDULE, FIRE, HOLD, RELEASE = "cancel", "reschedule", "fire", "hold", "release"
GRACE_S = 2.0  # for the answer of a server that has used up the time of a request
TIMEOUT_MS_MAX = 10**9
_RANKS = {ParameterSource.COMMANDLINE: 2, ParameterSource.ENVIRONMENT: 1}


class DelayChange(NamedTuple):
    """A change of a delayed message. `timing`: the new due time of a reschedule, as arguments of
    `Producer.reschedule`."""

    action: str
    timing: Mapping[str, Any] = {}


class ChangeRequests(ABC):
    """Requests changes of delayed messages. Many threads may use one."""

    @abstractmethod
    def request_change(
        self, delay_id: str, change: DelayChange, *, quiet: bool = False
    ) -> CancelOutcome | str:
        """Request the change; return its outcome, or the text of the error. `quiet`: print nothing while it
        is under way."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections of these requests."""


class ProducerRequests(ChangeRequests):
    """Requests changes from a producer proxy. `quiet`: print nothing while no proxy answers."""

    def __init__(self, producer: HostPort, timeout_ms: int, *, quiet: bool) -> None:
        self._client = client_of(producer, timeout_ms)
        self._patience = Patience(producer, timeout_ms, quiet=quiet)
        self._silence = Patience(producer, timeout_ms, quiet=True)

    def request_change(
        self, delay_id: str, change: DelayChange, *, quiet: bool = False
    ) -> CancelOutcome | str:
        patience = self._silence if quiet else self._patience
        try:
            with patience.watch_request(self._client):
                return _change_message(self._client, delay_id, change)
        except ClientError as error:
            return in_options(error)

    def close(self) -> None:
        self._client.close()


def _change_message(client: Producer, delay_id: str, change: DelayChange) -> CancelOutcome:
    if change.action == CANCEL:
        return client.cancel(delay_id)
    return (
        client.fire_now(delay_id) if change.action == FIRE else client.reschedule(delay_id, **change.timing)
    )


class AdminRequests(ChangeRequests):
    """Requests changes from the admin port."""

    def __init__(self, admin: AdminClient, timeout_ms: int) -> None:
        self._admin = AdminClient(admin.address, timeout_ms / 1000 + GRACE_S)
        self._timeout_ms = min(timeout_ms, TIMEOUT_MS_MAX)

    def request_change(
        self, delay_id: str, change: DelayChange, *, quiet: bool = False
    ) -> CancelOutcome | str:
        body: dict[str, Any] = {"action": change.action, "timeout_ms": self._timeout_ms}
        when = when_of(**change.timing)
        if when is not None:
            body |= {"due_ms": when.due_ms} if when.delay_ms is None else {"delay_ms": when.delay_ms}
        try:
            return _read_outcome(self._admin.post("delay", "messages", delay_id, body=body))
        except UnknownResourceError as error:
            return _read_outcome(error.answer) if "outcome" in error.answer else error.message
        except click.ClickException as error:
            return error.message

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""


def _read_outcome(row: Mapping[str, Any]) -> CancelOutcome:
    fired, due = (None if row[name] is None else to_datetime(row[name]) for name in ("fired_ms", "due_ms"))
    status = DelayStatus.__members__.get(str(row["outcome"]).upper(), DelayStatus.PENDING)
    return CancelOutcome(status, fired, due, row.get("text", ""))


def choose_requests(
    producer: HostPort, admin: AdminClient, timeout_ms: int, *, many: bool, quiet: bool
) -> ChangeRequests:
    """Return the requests over the port that the command line names, else the one that a variable names.

    If neither or both are named, they go over the admin port, and over the producer port for `many` messages
    or if both are on the command line.
    """
    context = click.get_current_context()
    rank, admin_rank = (
        _RANKS.get(context.get_parameter_source(name) or ParameterSource.DEFAULT, 0)
        for name in ("producer", "admin")
    )
    if admin_rank > rank or (admin_rank == rank < max(_RANKS.values()) and not many):
        return AdminRequests(admin, timeout_ms)
    return ProducerRequests(producer, timeout_ms, quiet=quiet)
