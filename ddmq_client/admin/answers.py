"""Answers of the admin API to values, or to the errors that they stand for. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from ddmq_client.admin.http import HttpRequest, HttpResponse
from ddmq_client.errors import (
    AccessError,
    AdminError,
    NotFoundError,
    RejectedError,
    UnavailableError,
    UnknownChangeError,
)

_ERRORS: Mapping[int, type[AdminError]] = {
    400: RejectedError, 401: AccessError, 403: AccessError, 404: NotFoundError,
    405: RejectedError, 408: RejectedError, 409: RejectedError, 411: RejectedError, 413: RejectedError,
    415: RejectedError, 503: UnavailableError,
}  # fmt: skip


def read_answer(request: HttpRequest, response: HttpResponse, server: str) -> Any:
    """Return the decoded JSON of an answer, also of one that a delayed message is unknown.

    Raises the AdminError of its status, with the server's sentence; a plain AdminError if the answer is no
    JSON, or JSON that is nested too deeply to be decoded.
    """
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError):
        answer = None
    status = response.status
    if status == 200 and answer is not None:
        return answer
    fields = answer if isinstance(answer, dict) else {}
    if status == 404 and "outcome" in fields:
        return fields
    sentence = fields.get("error")
    if not isinstance(sentence, str):
        what = f"status {status}, {response.body[:40]!r}"
        raise AdminError(f"{server} is not a ddmq admin port ({what})", status, server)
    kind = _ERRORS.get(status, AdminError)
    if status == 504 or (status >= 500 and request.is_change and kind is AdminError):
        kind = UnknownChangeError if request.is_change else UnavailableError
    raise kind(sentence, status, server)


def read_page(answer: Any) -> tuple[list[Any], Mapping[str, object] | None]:
    """Return the rows of a list, and what to add to the query for its next page; None at the end.

    A server of the release before this one answers a list without pages, or a page with other keys.
    Raises AdminError for anything else.
    """
    if isinstance(answer, list):
        return answer, None
    for rows, cursor in (("items", "after"), ("messages", "after"), ("shown", "from")):
        if isinstance(answer, Mapping) and isinstance(answer.get(rows), list):
            after = answer.get("next")
            return answer[rows], None if after is None else {cursor: after}
    raise AdminError("the answer has no list; is the server of another release?")


def decode_body(row: Mapping[str, Any]) -> bytes:
    """Return the body of a message in an answer, which is text or base64."""
    if "body_base64" in row:
        return base64.b64decode(row["body_base64"])
    return str(row.get("body", "")).encode()


def add_counts(totals: dict[str, int], counts: Mapping[str, int]) -> None:
    """Add the counts of one answer to those of all answers."""
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count
