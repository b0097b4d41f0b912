"""The log: an event is a line on standard error, text for people or JSON for programs. No secrets, no bodies.

What others wrote into names and errors stays inside its line; the lines of a traceback are indented, so that
none of them passes for an event. Nor does anybody fill the disk with them: see Bounded.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import msgspec

from ddmq_common.plain_text import json_plain, plain

ALIKE_MAX = 200
ALIKE_S = 10.0
_PLAIN = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the caller passed to the log record as `extra`."""
    return {key: value for key, value in record.__dict__.items() if key not in _PLAIN}


class TextFormatter(logging.Formatter):
    """A formatter that writes lines such as `2026-11-21T12:00:00.123Z INFO ddmq.server: text key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_format_time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        for key, value in extra_fields(record).items():
            line += f" {key}={value}"
        return plain(line) + _trace(self, record)


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        event = {"time": _format_time(record), "level": record.levelname.lower(), "logger": record.name}
        event |= {"event": record.getMessage()} | extra_fields(record)
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return json_plain(msgspec.json.encode(event, enc_hook=str).decode())


def _format_time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info:
        return ""
    return "".join(f"\n  {plain(line)}" for line in formatter.formatException(record.exc_info).split("\n"))


class Bounded(logging.Filter):
    """A filter that lets each log statement write at most ALIKE_MAX lines in ALIKE_S. The last line before
    lines are dropped says so; the next line that is written says how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int], int] = {}
        self._dropped_counts: dict[tuple[str, int], int] = {}
        self._since = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may be written."""
        if not 0 <= record.created - self._since < ALIKE_S:
            self._dropped_counts |= {kind: n - ALIKE_MAX for kind, n in self._counts.items() if n > ALIKE_MAX}
            self._counts, self._since = {}, record.created
        kind = record.pathname, record.lineno
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count == 1 and kind in self._dropped_counts:
            record.left_out_before = self._dropped_counts.pop(kind)
        if count == ALIKE_MAX:
            record.further_ones = f"left out for up to {ALIKE_S:g} s"
        return count <= ALIKE_MAX


def set_up(level: str, style: str) -> None:
    """Send the project's log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Bounded())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
