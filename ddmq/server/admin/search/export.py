"""Exports a group's open dead letters with their bodies, page by page, as one JSON document a line.

Every line but the last is a dead letter: its row without the preview, and its whole body as `body` (text) or
`body_base64`. The last line is `{"exported": N, "next": CURSOR}`: with this cursor the next page begins after
the last dead letter of this one; null at the end. A page is bounded, and only one batch is read at a time.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from backend.internal_topics import DeadLetter
from backend.port import Backend
from ddmq.server.admin.dlq import (
    DeadLetterFilter,
    DeadLetterRange,
    dead_letter_row,
    list_dead_letter_queues,
    read_open_dead_letters,
)
from ddmq.server.admin.search.dead_letters import read_forward
from ddmq.server.http.connection import NDJSON
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import Text
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError
from ddmq_common.plain_text import body_fields

LETTERS_MAX = 1_000  # in a page
BYTES_MAX = 4 << 20  # of a page, but at least one dead letter
SCANNED_MAX = 10_000
EXPORT_S = 2.0
_DIGITS_MAX = 18


def export_page(
    backend: Backend, clock: Clock, group: str, choice: DeadLetterFilter, after: str | None
) -> Text:
    """Return one page of the open dead letters that match, the oldest first, by queue. `after`: the cursor of
    the page before."""
    first_queue, first_offset = (0, 0) if after is None else _parse_cursor(after)
    queues = list_dead_letter_queues(backend, group)
    bounds, opened = read_open_dead_letters(backend, queues)
    stop_at = clock.monotonic() + EXPORT_S
    lines: list[bytes] = []
    size = scanned = 0
    for queue, limits, open_letters in zip(queues, bounds, opened, strict=True):
        if queue.queue_id < first_queue:
            continue
        at = max(limits.min, first_offset) if queue.queue_id == first_queue else limits.min
        for letters, remaining in read_forward(
            backend, DeadLetterRange(queue, at, limits.next), open_letters
        ):
            for letter in paced(letters):
                scanned += 1
                if choice.matches(letter):
                    lines.append(msgspec.json.encode(_exported_row(letter)))
                    size += len(lines[-1])
                if len(lines) == LETTERS_MAX or size >= BYTES_MAX:
                    return _as_page(lines, f"{queue.queue_id}.{letter.record.offset + 1}")
            if scanned >= SCANNED_MAX or clock.monotonic() >= stop_at:
                return _as_page(lines, f"{queue.queue_id}.{remaining.at}")
    return _as_page(lines, None)


def _as_page(lines: list[bytes], following: str | None) -> Text:
    end = msgspec.json.encode({"exported": len(lines), "next": following})
    return Text(NDJSON, b"".join(b"%b\n" % line for line in (*lines, end)))


def _exported_row(letter: DeadLetter) -> dict[str, Any]:
    row = dead_letter_row(letter)
    del row["preview"]
    if letter.content is None:  # its bytes cannot be parsed, and are exported as they are
        return row | {"delivery_base64": base64.b64encode(bytes(letter.record.delivery)).decode()}
    return row | body_fields(letter.content.value)


def _parse_cursor(text: str) -> tuple[int, int]:
    numbers = text.split(".")
    if len(numbers) != 2 or not all(
        number.isascii() and number.isdecimal() and len(number) <= _DIGITS_MAX for number in numbers
    ):
        raise CallerError(f"after is {text[:80]!r}; allowed: the `next` of an earlier answer")
    return int(numbers[0]), int(numbers[1])
