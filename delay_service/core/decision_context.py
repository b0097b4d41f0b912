"""What decisions about one shard's commands rest on: its store, what the log says, what is assumed."""

from __future__ import annotations

from collections.abc import Container

from backend.progress.ack_map import AckMap
from delay_service.core.assumed import Assumed
from delay_service.core.kinds.occurrences import CATCH_UP_MAX
from delay_service.store.port import DelayStore


class DecisionContext:
    """Of one shard. `busy`: offsets of messages whose commit is under way. `kept_ms`: how long the outcome
    of an id is kept. `reread_to`: commands below were taken in before, by us or another owner; `lost_place`:
    the store cannot say which of them it has."""

    def __init__(
        self,
        store: DelayStore,
        acks: AckMap,
        busy: Container[int],
        kept_ms: int,
        reread_to: int = 0,
        lost_place: bool = False,
        catch_up_max: int = CATCH_UP_MAX,
    ) -> None:
        self.store = store
        self.acks = acks
        self.busy = busy
        self.kept_ms = kept_ms
        self.reread_to = reread_to
        self.lost_place = lost_place
        self.place_from = reread_to if lost_place else 0  # before, its next owner is as lost
        self.catch_up_max = catch_up_max
        self.assumed: dict[bytes, Assumed] = {}  # over by the log alone
