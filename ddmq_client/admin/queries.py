"""The queries of the admin client's requests. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ddmq_client.admin.settings import DeadLetterChoice, check_reason
from ddmq_client.delays import epoch_ms


def choice_query(choice: DeadLetterChoice) -> dict[str, Any]:
    """Return the query for a choice of dead letters. Raises OptionError."""
    check_reason(choice)
    query: dict[str, Any] = {name: value for name, value in choice.items() if name != "since"}
    if "since" in choice:
        query["since_ms"] = epoch_ms("since", choice["since"])
    return query


def delay_query(
    topic: str | None, key: str | None, due_from: datetime | None, due_before: datetime | None
) -> dict[str, Any]:
    """Return the query for a choice of delayed messages. Raises OptionError."""
    from_ms = None if due_from is None else epoch_ms("due_from", due_from)
    to_ms = None if due_before is None else epoch_ms("due_before", due_before)
    return {"topic": topic, "key": key, "from_ms": from_ms, "to_ms": to_ms}
