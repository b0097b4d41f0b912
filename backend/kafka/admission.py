"""Which topics of the cluster are visible here. Pure.

Three kinds of topics are visible: those that this installation has recorded in its settings, its inner
topics, and topics of other programs that the patterns of `topics` in backend.yaml admit. The system topics of
another installation are never visible, whatever the patterns say: a client that could write to them could
forge its progress, settings and delays.

Another installation is known by its system topics: `ROOT.coordination` beside `ROOT.settings` or
`ROOT.progress`, where ROOT is its prefix and namespace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from backend.kafka.options import Names, is_namespace
from ddmq_common.names import SCHEDULE_TOPIC

_COORDINATION = ".coordination"
_SYSTEM_SUFFIXES = (_COORDINATION, ".settings", ".progress")
_INNER = ".x."


class TopicAdmission:
    """Selects the visible topics of a cluster. `other_roots`: the roots of the other installations in it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._own_root = names.system_topic("")[:-1]
        self.other_roots: frozenset[str] = frozenset()

    def select_topics(self, kafka_names: Collection[str], recorded: Collection[str]) -> dict[str, str]:
        """Return our name of each visible topic by its name in Kafka, and update `other_roots`.

        `kafka_names`: every topic of the cluster. `recorded`: our names of the topics in the settings topic.
        """
        self.other_roots = self._find_other_roots(kafka_names)
        visible = {}
        for kafka_name in kafka_names:
            name = self._names.from_kafka(kafka_name, recorded)
            if name is not None and not self.owner_of(kafka_name):
                visible[kafka_name] = name
        return visible

    def owner_of(self, kafka_name: str) -> str:
        """Return the root of the other installation that has this system topic, or "" if it is none."""
        return self._find_owner(kafka_name, self.other_roots)

    def owner_of_new(self, kafka_name: str, kafka_names: Collection[str]) -> str:
        """Return the root of the installation that would have this topic once it is created, or "".

        `kafka_names`: every topic of the cluster. The new topic may be the one that makes others look like
        system topics, such as `a.settings` beside `a.coordination`.
        """
        return self._find_owner(kafka_name, self._find_other_roots({*kafka_names, kafka_name}))

    def _find_owner(self, kafka_name: str, roots: Collection[str]) -> str:
        if not roots or kafka_name == self._names.prefix + SCHEDULE_TOPIC:
            return ""
        for suffix in _SYSTEM_SUFFIXES:
            if kafka_name.endswith(suffix) and kafka_name[: -len(suffix)] in roots:
                return kafka_name[: -len(suffix)]
        own_inner = self._own_root + _INNER
        if kafka_name.startswith(own_inner) and "." not in kafka_name[len(own_inner) :]:
            return ""  # with the prefix `a.x.`, it looks like an inner topic of an installation `a`, too
        for end in _ends_of(kafka_name, _INNER):
            if kafka_name[:end] in roots:
                return kafka_name[:end]
        if kafka_name.endswith(SCHEDULE_TOPIC):
            prefix = kafka_name[: -len(SCHEDULE_TOPIC)]
            return min((root for root in roots if root.startswith(prefix)), default="")
        return ""

    def find_same_prefix_roots(self) -> list[str]:
        """Return the roots of installations whose `topic_prefix` is most likely the same as ours, sorted.

        They differ from this installation in their namespace alone, so both fire the same delay levels.
        """
        prefix = self._names.prefix
        return sorted(
            root for root in self.other_roots if root.startswith(prefix) and is_namespace(root[len(prefix) :])
        )

    def _find_other_roots(self, kafka_names: Collection[str]) -> frozenset[str]:
        roots = (name[: -len(_COORDINATION)] for name in kafka_names if name.endswith(_COORDINATION))
        return frozenset(
            root
            for root in roots
            if root != self._own_root
            and (f"{root}.settings" in kafka_names or f"{root}.progress" in kafka_names)
        )


def may_be_system_topic(kafka_name: str) -> bool:
    """Return whether the topic's name alone allows it to be a system topic of some installation."""
    return kafka_name.endswith((*_SYSTEM_SUFFIXES, SCHEDULE_TOPIC)) or _INNER in kafka_name


def _ends_of(text: str, mark: str) -> Iterable[int]:
    position = text.find(mark)
    while position >= 0:
        yield position
        position = text.find(mark, position + 1)
