"""Names of topics and groups, by the rule of the proxies. Pure.

A producer or consumer leaves the check to its proxy. The checks here are for names that meet no proxy before
it is too late: those of Dramatiq queues, and those of messages that a test makes.
"""

from __future__ import annotations

import re

TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 119
NAME_ALLOWED = "ASCII letters, digits and _ - % |"
_NAME = re.compile(r"[A-Za-z0-9_\-%|]+")


def find_name_error(name: object, bytes_max: int) -> str | None:
    """Return why `name` is not a valid name of a topic or a group, or None."""
    allowed = f"allowed: 1 to {bytes_max} {NAME_ALLOWED}"
    if not isinstance(name, str):
        return f"is {type(name).__name__} {name!r:.100}; {allowed}"
    if not _NAME.fullmatch(name):
        return f"is {name!r:.100}; {allowed}"
    if len(name) > bytes_max:
        return f"has {len(name)} bytes: {name!r:.40}…; {allowed}"
    return None
