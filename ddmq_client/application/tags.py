"""Tag expressions that servers accept as the name of a single tag, although they look like several. Pure."""

from __future__ import annotations

import re

_SEPARATOR = re.compile(r"\s*(?:[|,;]|&&|(?<!\S)(?:or|and)(?!\S))\s*", re.IGNORECASE)


def find_tag_note(tags: str | None) -> str:
    """Return a note about the first tag of an expression that looks like several tags; "" if there is none.

    The alternatives of an expression are separated by `||` only. Other separators are part of a tag's name,
    and such names are legal.
    """
    if not tags or "*" in tags:
        return ""
    for tag in map(str.strip, tags.split("||")):
        parts = [part for part in _SEPARATOR.split(tag) if part]
        if len(parts) > 1:
            return f"this is one tag named {tag!r}; for either tag write {' || '.join(parts)}"
    return ""
