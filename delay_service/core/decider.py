"""Commands taken in, in the order of the inner topic: what changes in the store and what each came to.

One place decides whether a cancel came in time: here, against a store that no fire under way can change.
Rules:
* A message whose commit is under way is `busy`; a command about it, and all behind it, wait for the outcome.
* An add is known when its uuid is pending, was fired within the last `RESEND_MS`, or was cancelled (also
  before it came: a tombstone). It then stores nothing. The same command read once more (its offset is the
  state's) is no second add: what waits goes on waiting. What the group of fired messages has finished at its
  own offset was fired or cancelled already, by an owner whose store did not live to tell: a cancel that is
  read behind it, and came before it could fire, was the one.
* A cancel of an unknown uuid leaves a tombstone until its due time and an hour, but at least an hour.
* `taken.done`: offsets nobody waits for any more, to be finished in the group of fired messages.
* A cancel of what became a dead letter is answered as of what fired, with words that say so: it is over.
  (Only when the store did not live to tell is it "already fired" without them.)
* What was written to the store and not yet committed is read again after a crash: `again` then changes
  nothing and says what had been decided.
* A store that has lost how far it is reads all commands anew. Which delivery of a message that repeats a
  move was of, the log knows: the move's own offset is finished with that delivery, or the next move of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from delay_service.core.command_record import CommandRecord
from delay_service.core.command_run import CommandRun
from delay_service.core.decision_context import DecisionContext
from delay_service.core.taken import Taken

INGESTED = "ingested"  # meta: the inner offset up to which the store has taken commands in


def take(context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> Taken:
    """Decide the longest run from the first command that need not wait."""
    if context.assumed and commands and commands[0].offset >= context.reread_to:
        context.assumed.clear()
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        if not run.take(command):
            break
    return run.taken()


def again(context: DecisionContext, commands: Sequence[CommandRecord], now_ms: int) -> Taken:
    """What these commands, which the store holds already, had come to."""
    run = CommandRun(context, commands, now_ms)
    for command in commands:
        run.take_again(command)
    return run.taken()
