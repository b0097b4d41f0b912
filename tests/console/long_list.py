"""A list of 100,000 keys as the admin API would answer it, page by page."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

KEYS = 100_000


def build_keys(first: int, count: int, total: int) -> dict[str, Any]:
    """Return the answer of GET /keys in form 2 with the keys from number `first` on, of so many."""
    row = {
        "group": "billing",
        "topic": "orders",
        "queue_id": 0,
        "state": "retrying",
        "attempts": 3,
        "more": False,
        "error": "ValueError: no address",
        "error_class": "ValueError",
        "failing_since_ms": 1,
        "waiting": 2,
    }
    numbers = range(first, min(first + count, total))
    rows = [{**row, "key": f"customer-{number}", "offset": number} for number in numbers]
    following = str(numbers.stop) if numbers.stop < total else None
    return {"items": rows, "total": total, "exact": True, "next": following, "missing": {}, "by_error": []}


def serve_keys(page: Any, *, least: int = 0, total: int = KEYS) -> None:
    """Let a page of a browser get such answers, with at least so many rows each."""

    def answer(route: Any) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        first, count = int(query.get("after", ["0"])[0]), int(query["count"][0])
        route.fulfill(json=build_keys(first, max(count, least), total))

    page.route("**/keys?*", answer)
