"""Orders taken in, in the order of the inner topic: what changes in the store and what each came to.

One place decides whether a cancel came in time: here, against a store that no fire under way can change.
Rules:
* A message whose commit is under way is `busy`; an order about it, and all behind it, wait for the outcome.
* An add is known when its uuid is pending, was fired within the last `RESEND_MS`, or was cancelled (also
  before it came: a tombstone). It then stores nothing. The same order read once more (its offset is the
  state's) is no second add: what waits goes on waiting. What the group of fired messages has finished at its
  own offset was fired or cancelled already, by an owner whose store did not live to tell: a cancel that is
  read behind it, and came before it could fire, was the one.
* A cancel of an unknown uuid leaves a tombstone until its due time and an hour, but at least an hour.
* `taken.done`: offsets nobody waits for any more, to be finished in the group of fired messages.
* A cancel of what became a dead letter is answered as of what fired, with words that say so: it is over.
  (Only when the store did not live to tell is it "already fired" without them.)
* What was written to the store and not yet committed is read again after a crash: `again` then changes
  nothing and says what had been decided.
* A store that has lost how far it is reads all orders anew. Which delivery of a message that repeats a
  move was of, the log knows: the move's own offset is finished with that delivery, or the next move of it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from backend.progress.ack_map import AckMap
from delay_service.core.assumed import Assumed
from delay_service.core.batch import Batch
from delay_service.core.kinds import CATCH_UP_MAX
from delay_service.core.orders import Order
from delay_service.core.taken import Taken
from delay_service.store.port import DelayStore

INGESTED = "ingested"  # meta: the inner offset up to which the store has taken orders in


class Intake:
    """Of one shard. `busy`: offsets of messages whose commit is under way. `kept_ms`: how long the outcome
    of an id is kept. `reread_to`: orders below were taken in before, by us or another owner; `lost_place`:
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

    def take(self, orders: Sequence[Order], now_ms: int) -> Taken:
        """Decide the longest run from the first order that need not wait."""
        if self.assumed and orders and orders[0].offset >= self.reread_to:
            self.assumed.clear()
        batch = Batch(self, orders, now_ms)
        for order in orders:
            if not batch.take(order):
                break
        return batch.taken()

    def again(self, orders: Sequence[Order], now_ms: int) -> Taken:
        """What these orders, which the store holds already, had come to."""
        batch = Batch(self, orders, now_ms)
        for order in orders:
            batch.take_again(order)
        return batch.taken()
