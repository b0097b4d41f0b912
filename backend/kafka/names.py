"""Our topic names and Kafka's, each from the other; no two of one side share one of the other.

Kafka's alphabet is letters, digits and `. _ -`, ours has no dot but `% |`. A topic of other programs has the
name it has, with each dot as `%2E`. Of ours, what Kafka can take has the same name there (`%2E` is a dot
again); the rest is `NAMESPACE.x.` and the name, with each byte that Kafka forbids, and each `-`, as `-HH`.
`topic_prefix` stands in front of everything. docs/formats-kafka.md says the same with examples.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import NamedTuple

from ddmq_common.errors import CallerError
from ddmq_common.names import topic_fault

KAFKA_NAME_MAX = 249
_LEGAL = re.compile(r"[A-Za-z0-9._\-]+\Z")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_]")
_CODED = re.compile(r"-([0-9A-F]{2})")


class Names(NamedTuple):
    """The names of one installation: its namespace, its prefix, and which topics of others it lets in."""

    namespace: str = "ddmq"
    prefix: str = ""
    patterns: tuple[str, ...] = ("*",)

    def system(self, part: str) -> str:
        """Kafka's name of one of the system's own topics, such as `settings`."""
        return f"{self.prefix}{self.namespace}.{part}"

    def to_kafka(self, name: str) -> str:
        """Kafka's name of our topic `name`. Raises CallerError when it is too long there."""
        plain = name.replace("%2E", ".")
        if not self._plain(plain):
            plain = f"{self.namespace}.x." + _FORBIDDEN.sub(lambda found: f"-{ord(found[0]):02X}", name)
        found = self.prefix + plain
        if len(found) > KAFKA_NAME_MAX:
            raise CallerError(
                f"topic {name} would be called {found[:60]}… in Kafka, {len(found)} bytes; "
                f"allowed: at most {KAFKA_NAME_MAX}"
            )
        return found

    def from_kafka(self, kafka_name: str) -> str | None:
        """Our name of a topic of Kafka's; None for those that are none of ours and not let in."""
        if not kafka_name.startswith(self.prefix):
            return None
        found = kafka_name[len(self.prefix) :]
        coded = found.startswith(f"{self.namespace}.x.")
        if coded:
            text = found[len(self.namespace) + 3 :]
            name = _CODED.sub(lambda hexed: chr(int(hexed[1], 16)), text)
        elif self._plain(found) and any(fnmatchcase(found, pattern) for pattern in self.patterns):
            name = found.replace(".", "%2E")
        else:
            return None
        if topic_fault(name) is not None:
            return None
        return name if self._same(name, kafka_name) else None

    def lets_in(self, kafka_name: str) -> bool:
        """Whether a topic of Kafka's is one of ours."""
        return self.from_kafka(kafka_name) is not None

    def _plain(self, found: str) -> bool:
        """Whether a topic's name in Kafka may be without the coded form."""
        return (
            _LEGAL.match(found) is not None
            and found not in (".", "..")
            and not found.startswith(("_", f"{self.namespace}."))
        )

    def _same(self, name: str, kafka_name: str) -> bool:
        try:
            return self.to_kafka(name) == kafka_name
        except CallerError:
            return False


def incarnation(topic_id: str) -> int:
    """A topic's incarnation of its id in Kafka, which a topic made anew has another one of."""
    return int.from_bytes(blake2b(topic_id.encode(), digest_size=6).digest(), "big") or 1
