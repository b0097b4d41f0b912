"""The usage of this process by each identity, for GET /usage."""

from __future__ import annotations

from typing import Any

from ddmq_common.security.callers import CallerTable


def list_usage(callers: CallerTable | None) -> list[dict[str, Any]]:
    """Return one row for each identity that has used this process, the one with most requests first."""
    rows = [] if callers is None else [
        {"identity": name} | figures._asdict() for name, figures in callers.list_usage().items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["requests"], row["identity"]))
