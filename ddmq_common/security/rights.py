"""The rights by name, and the rules that grant them. Pure.

A rule is `RIGHT PATTERN` for a right on names, and `RIGHT` for a right on the whole installation. A pattern
is a name, `PREFIX*` or `*`. There are only rules that allow, so their order means nothing. `%DLQ%G` and
`%RETRY%G` follow the rules for group G; other internal topics are accessible to administrators alone,
whatever a rule says.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from ddmq_common.names import DLQ_PREFIX, RETRY_PREFIX, is_internal
from ddmq_common.plain_text import plain

# Rights on the names of topics, consumer groups and producer groups.
NAME_RIGHTS = {
    "describe": "see that a topic or group exists, its settings and its figures",
    "browse": "read the messages of a topic",
    "send": "send messages to a topic",
    "consume": "receive and finish messages: of a group, and of each of its topics",
    "transact": "prepare and end transactions of a producer group",
    "create": "create a topic or group",
    "manage": "change the settings of a topic or group, or delete it",
    "operate": "change the progress of a group: its offsets, keys and dead letters",
}
# Rights on the whole installation.
CLUSTER_RIGHTS = {
    "metrics": "read the metrics, whose labels name topics and groups",
    "push": "set push targets, scripts and secrets of a subscription",
    "relay": "send as an old delay service, by the property from_chronos",
    "backup": "make backups",
    "node": "act for others, as the processes of an installation do",
}
RIGHTS = {"none": "no right is needed"} | NAME_RIGHTS | CLUSTER_RIGHTS
DESCRIBING = frozenset(("browse", "consume", "manage", "operate"))  # each of these includes describe
PATTERN_MAX = 127
EVERY_NAME = "*"  # the name that only the pattern * matches
_PATTERN = re.compile(r"[A-Za-z0-9_\-%|]*\*?\Z")


class RightRule(NamedTuple):
    """One right on the names that a pattern matches; `pattern` is "" for a right on the installation."""

    right: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.right} {self.pattern}".rstrip()

    def is_granting(self, right: str, name: str) -> bool:
        """Return whether this rule grants `right` on `name`."""
        if right != self.right and not (right == "describe" and self.right in DESCRIBING):
            return False
        pattern = self.pattern
        return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def parse_rule(text: str) -> RightRule:
    """Parse `RIGHT PATTERN` or `RIGHT`. Raises ValueError that names what is wrong and what is allowed."""
    words = text.split()
    right = words[0] if words else ""
    if right not in NAME_RIGHTS and right not in CLUSTER_RIGHTS:
        near = difflib.get_close_matches(right, NAME_RIGHTS | CLUSTER_RIGHTS, n=1)
        hint = (
            f"; did you mean {near[0]}?" if near else f"; allowed: {', '.join(NAME_RIGHTS | CLUSTER_RIGHTS)}"
        )
        raise ValueError(f"rule {plain(text)!r}: {right!r} is no right{hint}")
    if right in CLUSTER_RIGHTS:
        if len(words) > 1:
            raise ValueError(
                f"rule {plain(text)!r}: {right} is a right on the installation; write only {right}"
            )
        return RightRule(right, "")
    if len(words) != 2:
        raise ValueError(f"rule {plain(text)!r}: allowed: {right} NAME, {right} PREFIX*, {right} *")
    pattern = words[1]
    if not pattern or len(pattern) > PATTERN_MAX or not _PATTERN.match(pattern):
        raise ValueError(
            f"rule {plain(text)!r}: the pattern is not a name; allowed: letters, digits and _ - % |, "
            "and one * at the end"
        )
    for prefix in (DLQ_PREFIX, RETRY_PREFIX):
        if pattern.startswith(prefix):
            raise ValueError(f"rule {plain(text)!r}: {prefix}G follows the rules for group G; name the group")
    return RightRule(right, pattern)


def find_granted_name(name: str) -> str | None:
    """Return the name whose rules apply to `name`: the group for its dead letters, retries and broadcast
    instances. None for a name that is accessible to administrators alone."""
    for prefix in (DLQ_PREFIX, RETRY_PREFIX):
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    if not name or is_internal(name):
        return None
    return name


def describe_right(right: str, name: str) -> str:
    """Return a right and its name as messages show them, on one line."""
    text = plain(name[:PATTERN_MAX])
    return f"{right} {text}" if text and right in NAME_RIGHTS else right
