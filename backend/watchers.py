"""Who wants to hear of changed settings and topics; told from the hub, later, in the order of changes."""

from __future__ import annotations

from collections.abc import Callable

Later = Callable[..., object]


class Watchers:
    """Listeners of one engine. `later` runs a function with its arguments from the hub."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._tells: list[Callable[[str], None]] = []

    def watch(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """As Backend.watch_settings; the same listener may be there twice."""

        def tell(key: str) -> None:
            if tell in self._tells:
                listener(key)

        def stop() -> None:
            if tell in self._tells:
                self._tells.remove(tell)

        self._tells.append(tell)
        return stop

    def changed(self, key: str) -> None:
        """Tell everybody, soon."""
        for tell in self._tells:
            self._later(tell, key)

    def clear(self) -> None:
        """Nobody hears anything any more."""
        self._tells.clear()
