"""One changer at a time, over any number of processes, with nothing but group progress.

The lock is a reset of an internal group's progress to the next generation, put into the commit that makes
the change. Whoever read the same generation and commits second is refused with FencedError, whole; it reads
again and sees what the first one did. Nothing is held while nobody changes anything.
"""

from __future__ import annotations

from backend.records import ProgressDelta, ProgressView, QueueRef
from ddmq_common.names import TURN_GROUP


def next_generation(queue: QueueRef, view: ProgressView) -> ProgressDelta:
    """What to put into the commit; `view`: TURN_GROUP's progress on `queue`, read before all else."""
    return ProgressDelta(TURN_GROUP, queue, view.epoch, view.generation + 1, reset_to=0)
