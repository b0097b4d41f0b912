"""Write docs/states.md from the table of job states; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from proxy_consumer.core.jobs import TRANSITIONS, JobEvent, JobState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
HEAD = """# States of a job

Made from `proxy_consumer/core/jobs.py` by `python tools/states_page.py`.

A message that goes well has no state of its own: it is read ahead, handed to a client as part of a run of
offsets under one lease, acknowledged, and its offset is finished. Only what happens to few messages makes
a job of one: it failed or timed out, it waits in the chain of its order key and has to be read again, an
operator set its key aside or skipped it, or group progress knows of tries before a restart.

Three rules hold in every state:

* **A message is unfinished until its end is certain.** A spent job's offset is finished in the same commit
  that stores it in its next topic (the retry topic or the dead letters), so it is never in neither.
* **A lease decides who may finish it.** A result under a lease that is not current changes nothing and is
  counted as late. Without a lease id an acknowledgement finishes what is leased or was delivered before.
* **Only the head of a chain fails.** What went out with it and stands behind it goes back untried; it is
  FORGOTTEN, or SENT_BACK where it had been tried before, and its chain comes to it again.

An event that a state does not list cannot happen; if it does that is a bug, which is raised, and nothing
has changed.

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
        + "\n\n## What follows\n\n| state | event | next |\n|---|---|---|\n"
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
