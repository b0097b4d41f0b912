"""R2 for the delay store: storage fails at every call that changes it, in every way, one at a time.

    python -m tests.crash.delay_store.store_faults --seed 1            every call, every kind (an hour or so)
    python -m tests.crash.delay_store.store_faults --seed 1 --count 200     so many of them

Prints each fault that was not survived with the command that repeats it. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.crash.delay_store.store_scenes import SCENES, Reported, live, read_reports, violations_of
from tests.crash.storage_calls import KINDS, Call, Fault, Storage
from tests.support.folders import find_reachable_base

SECONDS = 60.0


class Trial(NamedTuple):
    """One life of one scene under one fault."""

    scene: str
    fault: Fault
    seed: int

    @property
    def text(self) -> str:
        """As `--only` takes it."""
        return f"{self.scene}:{self.fault.kind}:{self.fault.point}:{self.seed}"


class Outcome(NamedTuple):
    """`struck`: the call that the fault met, None: there were fewer."""

    struck: Call | None
    calls: list[Call]
    reported: Reported
    violations: list[str]


def _keep_sockets_below_a_short_path() -> None:
    """Choose where multiprocessing has its sockets: the path of TMPDIR may be too long for one."""
    before = tempfile.tempdir
    tempfile.tempdir = str(find_reachable_base())
    try:
        get_temp_dir()  # which is made by the first call, and stays
    finally:
        tempfile.tempdir = before


class Stage:
    """Runs trials below `folder`. The processes come from a server that has never opened a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        _keep_sockets_below_a_short_path()
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.crash.delay_store.store_scenes"])
        for name, scene in SCENES.items():
            (folder / "before" / name).mkdir(parents=True)
            if scene.prepare is not None:
                scene.prepare(folder / "before" / name)

    def run(self, trial: Trial) -> Outcome:
        """One trial."""
        self._number += 1
        folder = self.folder / str(self._number)
        shutil.copytree(self.folder / "before" / trial.scene, folder)
        storage = Storage(folder, trial.fault, trial.seed)
        at = Path(f"{folder}.socket")
        line = storage.listen(at)
        near, far = self._processes.Pipe(duplex=False)
        process = self._processes.Process(target=live, args=(trial.scene, folder, str(at), far), daemon=True)
        process.start()
        far.close()
        violations = []
        try:
            storage.serve(line, process.pid or 0, SECONDS)
        except TimeoutError as error:
            violations.append(str(error))
        process.join()
        reported = read_reports(near)
        near.close()
        storage.lose()
        at.unlink()
        violations += violations_of(trial.scene, folder, reported)
        shutil.rmtree(folder)
        return Outcome(storage.struck, storage.calls, reported, violations)

    def points(self, scene: str, seed: int) -> int:
        """How many calls there are without a fault. Raises when even that is wrong."""
        outcome = self.run(Trial(scene, Fault("none", 0), seed))
        assert outcome.reported.completed, outcome
        assert not outcome.reported.refused, outcome
        assert not outcome.violations, outcome.violations
        return len(outcome.calls)


def trials(stage: Stage, seed: int, count: int | None) -> Iterator[Trial]:
    """Every kind at every call; or `count` of them, each scene and kind as often."""
    random = Random(seed)
    points = {scene: stage.points(scene, seed) for scene in SCENES}
    if count is None:
        for scene in SCENES:
            for point in range(1, points[scene] + 1):
                for kind in KINDS:
                    yield Trial(scene, Fault(kind, point), seed)
        return
    pairs = [(scene, kind) for scene in SCENES for kind in KINDS]
    for number in range(count):
        scene, kind = pairs[number % len(pairs)]
        yield Trial(scene, Fault(kind, random.randint(1, points[scene])), seed + number)


def run(
    folder: Path, seed: int, count: int | None, only: Trial | None = None
) -> tuple[list[str], Counter[str]]:
    """What was not survived, in words; and how often which kind met which call."""
    stage = Stage(folder)
    met: Counter[str] = Counter()
    broken = []
    for trial in [only] if only is not None else trials(stage, seed, count):
        outcome = stage.run(trial)
        if outcome.struck is not None:
            met[f"{trial.fault.kind} {outcome.struck.what}"] += 1
        for violation in outcome.violations:
            broken.append(f"{trial.text} at {outcome.struck}: {violation}")
            print(broken[-1], flush=True)
        if met.total() % 500 == 499:
            print(f"{met.total() + 1} faults", flush=True)
    return broken, met


def _trial(text: str) -> Trial:
    scene, kind, point, seed = text.split(":")
    return Trial(scene, Fault(kind, int(point)), int(seed))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="so many faults; without it every one")
    parser.add_argument("--only", type=_trial, help="one, as it is printed: SCENE:KIND:CALL:SEED")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="store-faults-") as folder:
        broken, met = run(Path(folder), arguments.seed, arguments.count, arguments.only)
    print(f"seed {arguments.seed}: {met.total()} faults, {len(broken)} not survived")
    print(", ".join(f"{what} {count}" for what, count in sorted(met.items())))
    if broken:
        only = broken[0].split()[0]
        print(f"again: python -m tests.crash.delay_store.store_faults --only {only}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
