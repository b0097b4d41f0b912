"""The file format of exported dead letters: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

# the value of a field that the server leaves out
_DEFAULTS: dict[str, Any] = dict.fromkeys(
    ("key", "tags", "reason", "error", "topic", "transaction", "delay"), ""
) | {"topic_queue": None, "topic_offset": None}


def write_dead_letters(
    file: TextIO,
    dead_letters: Sequence[Mapping[str, Any]],
    bodies: Mapping[tuple[int, int], Mapping[str, Any]],
) -> None:
    """Write a line for each dead letter. `bodies`: the body fields by queue and offset."""
    for dead_letter in dead_letters:
        row = _DEFAULTS | {name: value for name, value in dead_letter.items() if name != "preview"}
        row |= bodies[dead_letter["queue"], dead_letter["offset"]]
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
