"""The rights that routes will need, by name. Nothing enforces them yet.

A route names one, or several joined by " or " and " and ". A right applies to the topic, group or producer
group that the request is about.
"""

from __future__ import annotations

import re

RIGHTS = {
    "none": "no right is needed",
    "metrics": "read the metrics, whose labels name topics and groups",
    "describe": "see that a topic or group exists, its settings and its figures",
    "browse": "read the messages of a topic",
    "send": "send messages to a topic",
    "create": "create a topic or group",
    "manage": "change the settings of a topic or group, or delete it",
    "operate": "change the progress of a group: its offsets, keys and dead letters",
    "transact": "prepare and end transactions of a producer group",
    "backup": "make backups",
}


def split_rights(text: str) -> list[str]:
    """Return the names of the rights that a route states."""
    return re.split(r" or | and ", text)
