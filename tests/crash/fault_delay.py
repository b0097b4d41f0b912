"""R2 for delay messages: the storage of a delay service fails while it takes in and fires.

    python -m tests.crash.fault_delay --seed 7 --rounds 200

A round is a life of the process with one fault, at a random call of its RocksDB stores (storage_calls.py); a
power loss takes what was not synced from the log too. A short while later it is killed; or, where the fault
passes, it has to go on by itself and come to its end. After every few of
them a sound life fires what is left, and everything is checked: each message once, none early, each cancel's
answer true. What the process logged must be errors that say what to do, never a traceback. Prints the seed
and what was broken; the exit code is 1 then.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.crash.kill_delay import WAIT_S, Life, Story, report_lives, run_lives
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.storage_calls import KINDS, Fault, Storage

LIVES = 4  # to one load
SECONDS = 4.0  # of a life whose fault was never met
AFTER_S = 0.6  # how long the process may go on after its fault, at most
POINTS = 300
PASSING = ("failed", "full", "short")


def faulty_life(story: Story, number: int) -> str:
    """One; what met what."""
    random = story.random
    fault = Fault(random.choice(KINDS), int(POINTS ** random.random()))
    power_loss = fault.kind == "power"
    story.directory.joinpath("delay").mkdir(exist_ok=True)
    watched = story.directory if power_loss else story.directory / "delay"
    storage = Storage(watched, fault, random.randrange(1 << 30), random.uniform(0, 2 * AFTER_S))
    at = story.folder / f"{number}.socket"
    line = storage.listen(at)
    alone = fault.kind in PASSING and random.random() < 0.5
    life = Life(story.directory, *(["until-idle"] if alone else []), "watched", str(at))
    try:
        if alone:
            storage.serve(line, life.process.pid, WAIT_S)
        else:
            storage.serve(line, life.process.pid, SECONDS, random.uniform(0, AFTER_S))
    except TimeoutError as error:
        with (story.folder / "process.log").open("a") as log:
            log.write(f"Traceback of {error}\n")
    finally:
        life.kill()
    storage.lose()
    what = f"{fault.kind} {'nothing' if storage.struck is None else storage.struck.what}"
    return what + (" and went on" if alone else "")


def run(
    folder: Path, seed: int, rounds: int, print_line: PrintLine = print
) -> tuple[list[str], Counter[str]]:
    """Return what is broken, which a logged traceback is too, and how often each fault met each call."""
    broken, met = run_lives(folder, seed, rounds, LIVES, faulty_life, print_line)
    lines = (folder / "process.log").read_text().splitlines()
    return [*broken, *(line for line in lines if line.startswith("Traceback"))], met


def run_reported(folder: Path, seed: int, rounds: int, print_line: PrintLine) -> list[str]:
    """Report a run, and return what was broken."""
    command = replay_command("fault_delay", seed=seed, rounds=rounds)
    return report_lives(folder, command, *run(folder, seed, rounds, print_line), print_line)


def main() -> int:
    return long_run(__doc__, "fault-delay", run_reported, seed=1, rounds=200)


if __name__ == "__main__":
    sys.exit(main())
