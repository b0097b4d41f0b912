"""The answers of requests about findings, for their description in /openapi.json (see answers.py)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ddmq.server.http.parameters import Answer


class FindingRow(Answer):
    """A rule whose condition holds at a process, and since when. `id`: the name of its alert.

    `command`: a first command for a shell, which changes nothing; `action`: what to do, in words; `page`: the
    path of the console's page; `runbook`: the section of the documentation, as a path in the source tree.
    """

    id: str
    severity: Annotated[str, Meta(description="critical, warning or info")]
    since_ms: int
    labels: Annotated[dict[str, str], Meta(description="the labels of the alert")]
    text: str
    page: str
    command: str
    action: str
    runbook: str


class MissingProcess(Answer):
    """A process that did not respond, with the address of its admin port."""

    name: str
    admin: str


class UnevaluatedRule(Answer):
    """A rule that the server cannot evaluate, or not for all labels, and the reason."""

    id: str
    why: str


class FindingsAnswer(Answer):
    """The findings of the server, the most urgent first, and what this list lacks."""

    items: list[FindingRow]
    missing: list[MissingProcess]
    left_out: Annotated[dict[str, int], Meta(description="the number of further findings of each rule")]
    unevaluated: list[UnevaluatedRule]
