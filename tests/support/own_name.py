"""Names that no other test has, where tests of many files share one server."""

from __future__ import annotations

import re
from hashlib import blake2b

import pytest

READABLE_MAX = 80  # with what tests put around it, the whole stays within the bounds of names


def own_name(node: pytest.Item) -> str:
    """For people the test's name; its file and its parameters, to the letter, are in the digest."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", node.name)[:READABLE_MAX]
    return f"{readable}-{blake2b(node.nodeid.encode(), digest_size=4).hexdigest()}"
