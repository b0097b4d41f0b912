"""Faults while a log is being opened: it opens another time as if nothing had been."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from ddmq_common.errors import DdmqError
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import Promises, Story, check, open_story


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Promises]:
    """A log whose power was lost with a torn tail."""
    folder = tmp_path_factory.mktemp("recovery")
    (folder / "live").mkdir()
    storage, promises = FaultyStorage(folder / "live"), Promises()
    log = open_story(folder / "live", storage)
    Story(log, promises).play(3)
    Story(log, promises).append([("events", 0, 2000)])
    storage.lost = True
    log.close()
    return storage.image(folder / "image", seed=5), promises


@pytest.mark.parametrize("fault", ["fail", "short", "nospace", "crash", "crashed"])
def test_a_fault_at_every_point_of_opening(
    partial: tuple[Path, Promises], tmp_path: Path, fault: str
) -> None:
    image, promises = partial
    for point in itertools.count(1):
        work = tmp_path / str(point)
        shutil.copytree(image, work / "live")
        storage = FaultyStorage(work / "live", {point: fault})
        try:
            log = open_story(work / "live", storage)
            in_opening = storage.points < point
            log.close()
        except DdmqError:
            in_opening = False
        for seed in (None, 1):
            reopened = open_story(storage.image(work / f"image{seed}", seed))
            check(reopened, promises, written_too=False)
            assert reopened.recovered.damaged_ranges == 0
            reopened.close()
        if in_opening:
            break
