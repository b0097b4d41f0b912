"""R6: the model-based machines, for long: at least so many steps each.

    nice -n 10 .venv/bin/python -m tests.property.long_run                    100,000 steps of each
    .venv/bin/python -m tests.property.long_run --machine order --steps 5000 --seed 3

A step is one rule of a Hypothesis state machine, carried out on the real thing and on its naive model. Each
machine runs in rounds of their own seeds, so that the same seed runs the same again; prints a line a
machine, the failing example and its command when one differs. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.property.test_assignment import AssignmentMachine
from tests.property.test_consumer_order import (
    OrderInBatchesMachine,
    OrderInSlotsMachine,
    OrderMachine,
    OrderOfTopicsInBatchesMachine,
    OrderOfTopicsMachine,
)
from tests.property.test_consumer_pull_buffer import PullBufferMachine
from tests.property.test_delay_engine import DelayMachine
from tests.property.test_delay_levels import LevelMachine
from tests.property.test_fetch_property import PositionMachine, RosterMachine
from tests.property.test_progress_ack_map import AckMapMachine
from tests.property.test_stored_sends import StoredSendsMachine

MACHINES: dict[str, tuple[type[RuleBasedStateMachine], int]] = {  # and the steps of one example
    "order": (OrderMachine, 60),
    "order-in-batches": (OrderInBatchesMachine, 60),
    "order-in-turn": (OrderInSlotsMachine, 60),
    "order-of-topics": (OrderOfTopicsMachine, 60),
    "order-of-topics-in-batches": (OrderOfTopicsInBatchesMachine, 60),
    "pull-buffer": (PullBufferMachine, 60),
    "ack-map": (AckMapMachine, 50),
    "known-sends": (StoredSendsMachine, 60),
    "assignment": (AssignmentMachine, 50),
    "levels": (LevelMachine, 50),
    "delay": (DelayMachine, 50),
    "roster": (RosterMachine, 50),
    "position": (PositionMachine, 50),
}
EXAMPLES = 100  # of one round


def counted(machine: type[RuleBasedStateMachine], steps: list[int]) -> type[RuleBasedStateMachine]:
    """The machine, with the steps of all its examples in `steps[0]`."""

    class Counted(machine):  # type: ignore[misc, valid-type]
        @invariant()
        def counted_step(self) -> None:
            steps[0] += 1

    Counted.__qualname__ = Counted.__name__ = machine.__name__
    return Counted


def run_machine(name: str, steps_min: int, first_seed: int) -> bool:
    """Rounds until there were enough steps; whether the model and the real thing agreed."""
    machine, length = MACHINES[name]
    run_settings = settings(
        max_examples=EXAMPLES,
        stateful_step_count=length,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    began, rounds, steps = time.monotonic(), 0, [0]
    while steps[0] - rounds * EXAMPLES < steps_min:  # the invariant is looked at before the first step, too
        this: Any = seed(first_seed + rounds)(counted(machine, steps))
        rounds += 1
        try:
            run_state_machine_as_test(this, settings=run_settings)
        except Exception:
            traceback.print_exc()
            print(f"{name}: BROKEN; the same again: {_command(name, 1, first_seed + rounds - 1)}")
            return False
    done, seconds = steps[0] - rounds * EXAMPLES, time.monotonic() - began
    print(f"{name}: {done} steps in {rounds * EXAMPLES} examples, {seconds:.0f} s, no difference", flush=True)
    return True


def _command(name: str, steps: int, number: int) -> str:
    return f"python -m tests.property.long_run --machine {name} --steps {steps} --seed {number}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000, help="of each machine, at least")
    parser.add_argument("--machine", choices=sorted(MACHINES), action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    results = [run_machine(name, arguments.steps, arguments.seed) for name in arguments.machine or MACHINES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
