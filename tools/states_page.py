"""Write docs/states.md from the table of job states; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from proxy_consumer.core.jobs import TRANSITIONS, JobEvent, JobState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
HEAD = """# States of a job

This page shows what can happen to a message that is not acknowledged at its first delivery: the states, the
events, and the state that follows each event. `python tools/states_page.py` generates it from
`proxy_consumer/core/jobs.py`.

A message that succeeds at its first delivery never has a state. It is read ahead, delivered as part of a
range of offsets under a single lease, and acknowledged; its offset is then finished. A message becomes a
job only in these cases:

* The message fails or times out.
* The message waits in the chain of its order key and has to be read again.
* An operator parks or skips the message.
* The group's progress contains attempts to deliver the message that were made before a restart.

These rules apply in every state:

* **A message stays unfinished until its outcome is certain.** The offset of a spent job is finished in the
  same commit that stores the message in its next topic (the retry topic or the dead letters). The message
  is therefore always in at least one of the two topics.
* **Only the holder of the current lease may finish a message.** A result for an expired lease has no effect
  and is counted as late. An acknowledgement without a lease id finishes a message that is currently leased
  or was delivered earlier.
* **Only the head of a chain can fail.** Messages that follow the head and were delivered together with it
  return to the chain untried. The event for them is FORGOTTEN, or SENT_BACK if they have been tried before.
  They are delivered when the chain reaches them again.

An event that the last table does not list for a state cannot happen in that state. If it occurs
nevertheless, this is a bug in ddmq: an error is raised, and the state does not change.

## States

| state | meaning |
|---|---|
"""


def page() -> str:
    """The whole page."""
    states = [f"| {state.name} | {state.value} |" for state in JobState]
    events = [f"| {event.name} | {event.value} |" for event in JobEvent]
    changes = [
        f"| {state.name} | {event.name} | {following.name} |"
        for state, row in TRANSITIONS.items()
        for event, following in row.items()
    ]
    return (
        HEAD
        + "\n".join(states)
        + "\n\n## Events\n\n| event | what happened |\n|---|---|\n"
        + "\n".join(events)
        + "\n\n## What follows\n\n| state | event | next state |\n|---|---|---|\n"
        + "\n".join(changes)
        + "\n"
    )


def main() -> int:
    if "--check" in sys.argv:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("states: the page is up to date" if fresh else "states: run `python tools/states_page.py`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
