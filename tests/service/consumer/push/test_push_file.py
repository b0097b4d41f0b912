"""The File sink: lines that are durable before they count, rotation, bounds, faults."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy_consumer.push.actions.config import FileConfig, PushConfig
from proxy_consumer.push.sinks.file import TALLY
from tests.service.consumer.push.push_rig import PushRig

QUICK = {"retry_intervals_ms": (), "retry_steps": 0}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def rig_for(out: Path, config: FileConfig = FileConfig(), *actions: str, **more: Any) -> PushRig:  # noqa: B008
    bounds = {name: more.pop(name) for name in list(more) if name.startswith("push_")}
    rig = PushRig(push_files_dir=str(out), **bounds)
    rig.pushed(*(actions or ("File",)), push=PushConfig(file=config), **more)
    return rig


def files(out: Path) -> list[Path]:
    """Return the files that the sink wrote, oldest first; beside them lies the folder's tally."""
    return sorted(path for path in out.iterdir() if path.name != TALLY)


def lines(out: Path) -> list[bytes]:
    return [line for path in files(out) for line in path.read_bytes().splitlines(keepends=True)]


def test_a_line_a_message(out: Path) -> None:
    rig = rig_for(out)
    rig.put(b"one\nbody", b"two", properties={b"p": b"v"})
    rig.until_committed(2)
    assert [path.name for path in files(out)] == ["T-2023-11-14.00000001.jsonl"]
    records = [msgspec.json.decode(line) for line in lines(out)]
    assert records[0] == {
        "topic": "T", "qid": "R_default_a_0", "offset": 0, "key": "k", "properties": {"p": "v"},
        "body": "one\nbody",
    }  # fmt: skip
    assert [record["offset"] for record in records] == [0, 1]


def test_every_message_is_synced_before_it_counts(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        synced.append(len(lines(out)))
        real(descriptor)

    monkeypatch.setattr("proxy_consumer.push.sinks.file.os.fdatasync", fdatasync)
    rig = rig_for(out)
    rig.put(*[b"%d" % number for number in range(200)])
    rig.until_committed(200)
    assert synced[-1] == len(lines(out)) == 200
    assert len(synced) < 100  # together, not one by one


def test_a_failed_sync_is_not_believed_and_a_new_file_is_begun(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = os.fdatasync, [1]

    def fdatasync(descriptor: int) -> None:
        if faults.pop() if faults else 0:
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    monkeypatch.setattr("proxy_consumer.push.sinks.file.os.fdatasync", fdatasync)
    rig = rig_for(out)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert len(files(out)) == 2
    assert rig.outcomes() == {"failed": 1, "done": 1}


def test_files_are_rotated_by_size_and_time(out: Path) -> None:
    rig = rig_for(out, FileConfig(name="x", rotate_bytes=1024, rotate_ms=60_000, content="body"))
    for number in range(3):
        rig.put(b"%d" % number * 600)
        rig.until_committed(number + 1)
    assert len(files(out)) == 3
    rig.advance(61)
    rig.put(b"later")
    rig.until_committed(4)
    assert files(out)[-1].name == "x.00000004.jsonl"


def test_a_restart_begins_a_new_file(out: Path) -> None:
    for number in (1, 2):
        rig = rig_for(out, FileConfig(name="{group}"))
        rig.put(b"x")
        rig.until_committed(1)
        rig.close()
        assert len(files(out)) == number


def test_the_folder_has_a_bound(out: Path) -> None:
    rig = rig_for(out, push_files_bytes_max=1 << 20, **QUICK)
    rig.put(b"x" * 900_000)
    rig.until_committed(1)
    rig.put(b"y" * 900_000)
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert any("push_files_bytes_max" in value for value in rig.dead()[0][1].values())
    for path in out.iterdir():
        path.unlink()
    rig.put(b"z" * 900_000)
    rig.until_committed(3)


def test_a_full_folder_gets_no_new_files(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rig = rig_for(out, push_files_bytes_max=1 << 20)
    rig.put(b"x" * 900_000)
    rig.until_committed(1)
    rig.put(b"y" * 900_000)
    rig.until_moved(lambda: rig.outcomes().get("failed", 0) >= 4)
    assert [path.name for path in files(out)] == ["T-2023-11-14.00000001.jsonl"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_full_disk_gets_no_more_and_more_files(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, faults = os.write, [1] * 4

    def write(descriptor: int, data: memoryview) -> int:
        if faults:
            faults.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("proxy_consumer.push.sinks.file.os.write", write)
    rig = rig_for(out, retry_intervals_ms=(100, -1))
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert rig.outcomes() == {"failed": 4, "done": 1}
    assert [path.name for path in files(out)] == ["T-2023-11-14.00000001.jsonl"]


def test_what_comes_after_a_file_was_deleted_is_in_a_new_one(out: Path) -> None:
    rig = rig_for(out, FileConfig(content="body"))
    rig.put(b"before")
    rig.until_committed(1)
    (path,) = files(out)
    path.unlink()
    rig.put(b"after")
    rig.until_committed(2)
    assert lines(out) == [b"after\n"]


def test_a_body_that_is_no_line_is_a_dead_letter(out: Path) -> None:
    rig = rig_for(out, FileConfig(content="body"))
    rig.put(b"a\nb", b"fine")
    rig.until_moved(lambda: rig.progress().committed == 2)
    assert lines(out) == [b"fine\n"]
    assert any("line break" in value for value in rig.dead()[0][1].values())


def test_without_a_folder_the_subscription_is_paused(out: Path) -> None:
    rig = PushRig()
    rig.pushed("File", push=PushConfig())
    rig.put(b"x")
    rig.settle()
    assert rig.counted("ddmq_push_held") == 1


def test_a_folder_that_cannot_be_created_fails_messages(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rig = rig_for(tmp_path / "file" / "out", **QUICK)
    rig.put(b"x")
    rig.until_moved(lambda: rig.progress().committed == 1)
    assert rig.outcomes() == {"failed": 1}
