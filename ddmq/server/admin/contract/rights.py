"""The rights as routes state them in words. The rules that are checked are in ddmq/server/admin/access.py.

A route names one, or several joined by " or " and " and ". A right applies to the topic, group or producer
group that the request is about.
"""

from __future__ import annotations

import re

from ddmq_common.security.rights import RIGHTS as GRANTED_RIGHTS

ADMIN = "admin"  # is granted by no rule
RIGHTS = GRANTED_RIGHTS | {ADMIN: "be an identity of the kind admin"}


def split_rights(text: str) -> list[str]:
    """Return the names of the rights that a route states."""
    return re.split(r" or | and ", text)
