"""The answers of requests about recorded changes. Times are epoch milliseconds."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from ddmq.server.admin.contract.forms import OptionalText, absent_if
from ddmq.server.http.parameters import Answer

State = Annotated[
    Any,
    Meta(description="the state of the object; null: it did not exist, or is not recorded"),
    absent_if(None),
]


class ChangeAnswer(Answer):
    """A change that was made.

    `who`: the identity that made it, without rights the address of the client. `address`: of the client, or
    of the process that passed the request on; empty for changes of earlier releases. `undoable`: it can be
    undone, if nothing changes meanwhile. `final`: why it cannot. `undoes`, `undone_by`: ids of other changes,
    or empty.
    """

    id: str
    at_ms: int
    who: str
    address: OptionalText
    request: str
    kind: str
    object: str
    before: State
    after: State
    final: OptionalText
    undoes: OptionalText
    undone_by: OptionalText
    undoable: bool


class ChangesAnswer(Answer):
    """A page of the recorded changes, the newest first. `next`: null at the end."""

    items: list[ChangeAnswer]
    next: str | None
