"""Tag expressions: `A || B`, or `*` for all. A message has one tag, compared whole, `A||B` too.

Rules: a `*` anywhere in the expression means all, and so does an empty one; spaces around a tag do not
count; two bars stand between two tags, so no tag with two bars in it can be named here (SQL can).
"""

from __future__ import annotations

from proxy_consumer.filters.fault import ExpressionError, check_size

ALLOWED = "allowed: TAG || TAG …, or * for all"


def parse_tags(text: str) -> frozenset[str] | None:
    """The tags wanted; None = all. Raises ExpressionError."""
    if "*" in text or not text.strip():
        return None
    check_size(text)
    found: set[str] = set()
    at = 0
    for part in text.split("||"):
        tag = part.strip()
        if not tag:
            raise ExpressionError(f"a tag is missing; {ALLOWED}", at + 1)
        if part.startswith("|"):
            raise ExpressionError(f"three bars; {ALLOWED}", at - 1)
        found.add(tag)
        at += len(part) + 2
    return frozenset(found)
