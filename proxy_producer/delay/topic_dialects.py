"""Which topics speak which delay dialects (core/dialects): what a topic says of itself comes before what this
proxy's configuration says of it."""

from __future__ import annotations

from collections.abc import Mapping

from backend.port import Backend
from proxy_producer.core.dialects import DIALECTS, Dialects, dialects


class TopicDialects:
    """What one producer proxy knows of it. `spoken`: by topic, as on the wire; empty for nearly everyone."""

    def __init__(self, backend: Backend, configured: Mapping[str, tuple[str, ...]]) -> None:
        self._backend = backend
        self._configured = {name: dialects(names) for name, names in configured.items()}
        self.spoken: dict[bytes, Dialects] = {name.encode(): d for name, d in self._configured.items()}
        self._unwatch = backend.watch_settings(self._changed)
        for name in backend.topics():
            self._learn(name)

    def close(self) -> None:
        """Topics are watched no more."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        kind, _, name = key.partition("/")
        if kind == "topic":
            self._learn(name)

    def _learn(self, name: str) -> None:
        """What the topic speaks by now; names of a newer program mean nothing here."""
        info = self._backend.topic(name)
        known = () if info is None else [one for one in info.delay_dialects if one in DIALECTS]
        spoken = dialects(known) if known else self._configured.get(name)
        if spoken is not None:
            self.spoken[name.encode()] = spoken
        else:
            self.spoken.pop(name.encode(), None)
