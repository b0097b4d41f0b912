"""What this process knows of the topic that a message is to go to."""

from __future__ import annotations

from typing import NamedTuple


class TargetTopic(NamedTuple):
    """A topic that is there. `writable`: it takes messages now, as far as is known."""

    queues: int
    writable: bool
