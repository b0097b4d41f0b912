"""Bounds on folders that several processes write: the files of File, and the sample files."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest

from ddmq.server.process.sample_folder import SampleFolder
from ddmq_common.metrics.samples import HOUR_MS, SampleName
from proxy_consumer.push.sinks.file import SUFFIX, FilesFolder

BOUND = 100_000
LINE = 3_000
NOW_MS = 1_700_000_000_000


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))


def write_until_full(folder: FilesFolder, name: str, start: Barrier, errors: list[str]) -> None:
    """Write lines to a file of its own, as the sink of one proxy does, until one is refused."""
    path = folder.path / f"{name}{SUFFIX}"  # type: ignore[operator]
    start.wait()
    for _ in range(BOUND // LINE + 1):
        try:
            with folder.reserve_bytes(LINE), path.open("ab") as file:
                file.write(b"x" * LINE)
        except OSError as error:
            errors.append(str(error))
            return


@pytest.mark.parametrize("proxies", [1, 2, 3])
def test_files_of_several_proxies_stay_within_the_bound(proxies: int, tmp_path: Path) -> None:
    folders = [FilesFolder(str(tmp_path), BOUND) for _ in range(proxies)]
    for number, folder in enumerate(folders):  # each has counted an empty folder
        with folder.reserve_bytes(1):
            (tmp_path / f"first-{number}{SUFFIX}").write_bytes(b"x")
    errors: list[str] = []
    start = Barrier(proxies)
    threads = [
        Thread(target=write_until_full, args=(folder, str(number), start, errors))
        for number, folder in enumerate(folders)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert BOUND - LINE < written(tmp_path) <= BOUND
    assert errors == [f"the folder holds push_files_bytes_max ({BOUND} bytes)"] * proxies
    for folder in folders:
        next(path for path in tmp_path.glob(f"*{SUFFIX}") if path.stat().st_size >= LINE).unlink()
        with folder.reserve_bytes(LINE):
            (tmp_path / f"later{SUFFIX}").write_bytes(b"x" * LINE)


def test_space_reserved_but_not_written_by_a_killed_proxy_is_freed(tmp_path: Path) -> None:
    with FilesFolder(str(tmp_path), BOUND).reserve_bytes(BOUND):
        pass
    with FilesFolder(str(tmp_path), BOUND).reserve_bytes(BOUND):
        (tmp_path / f"a{SUFFIX}").write_bytes(b"x" * BOUND)
    with (
        pytest.raises(OSError, match="push_files_bytes_max"),
        FilesFolder(str(tmp_path), BOUND).reserve_bytes(1),
    ):
        pass


@pytest.mark.parametrize("processes", [2, 3])
def test_samples_of_several_processes_stay_within_the_bound(processes: int, tmp_path: Path) -> None:
    folders = [SampleFolder(tmp_path, f"{number:016x}") for number in range(processes)]
    for sequence in range(40):
        for folder in folders:
            name = SampleName(folder.instance, sequence, sequence, False)
            folder.write("date=2023-11-14/hour=22", name, b"x" * LINE)
    remaining = [folder.sweep(NOW_MS + HOUR_MS, 90, BOUND).remaining_bytes for folder in folders]
    sizes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert BOUND - LINE < sizes <= BOUND
    assert remaining == [sizes] * processes
