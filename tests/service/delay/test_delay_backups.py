"""Backups of messages of any size are put back whole; never beside a server that runs."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

from backend.file_log import open_log
from backend.file_log.options import FileLogOptions
from backend.records import QueueRef
from ddmq.cli.root import run
from ddmq.server.delays.backup import (
    MANIFEST,
    SECRET_FILE,
    OpenShard,
    backup_folder,
    check_secret,
    copy_shards,
    make_backup,
)
from ddmq.server.delays.restore import Restored, read_pages, restore_backup
from ddmq.server.http.routing import AdminRequest, Text
from ddmq_common.clock import SystemClock
from ddmq_common.delays.command import ADD, COMMAND_PROPERTY, DelayCommand, encode_command
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import CallerError, TryLaterError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.opening import open_store
from delay_service.store.port import Pending, StoreChanges

LOG = FileLogOptions(request_bytes_max=4 << 20)
SIZES = [1] * 50 + [40_000] * 300 + [3 << 20] * 3 + [1] * 50


def messages() -> list[Pending]:
    due = time.time_ns() // 1_000_000 + 3_600_000
    rows = []
    for number, size in enumerate(SIZES):
        uuid = f"00000000-0000-0000-0000-{number:012d}"
        order = encode_command(DelayCommand(ADD, uuid, "orders", due_ms=due + number))
        delivery = encode(b"", b"%d " % number + bytes(size), b"", None)
        raw = bytes.fromhex(uuid.replace("-", ""))
        rows.append(Pending(due + number, number, 0, "orders", raw, order, raw, 1, 0, b"", delivery))
    return rows


def backup(folder: Path) -> Path:
    store = open_store(folder / "stores", 0, 1)
    for message in messages():
        store.write(StoreChanges(added=[message]))
    (folder / "backup").mkdir()
    copy_shards(folder / "backup", [OpenShard(0, store)])
    store.close()
    (folder / "backup" / MANIFEST).write_bytes(msgspec.json.encode({"format": 1, "shards": [0]}))
    return folder / "backup"


def test_bodies_of_any_size_are_put_back_into_a_new_log(tmp_path: Path) -> None:
    summary = restore_backup(backup(tmp_path), tmp_path / "data", None, LOG)
    assert summary == Restored("new log", 1, len(SIZES))
    log = open_log(tmp_path / "data", LOG, clock=SystemClock(), metrics=Registry())
    try:
        info = log.topic(DELAY_TOPIC)
        assert info is not None
        queue, restored = QueueRef(info.name, info.incarnation, 0), []
        while len(restored) < len(SIZES):
            batch = log.read(queue, len(restored), 100, 4 << 20).wait(10)
            bodies = [decode(one.delivery).value for one in batch.carried(COMMAND_PROPERTY)]
            assert bodies
            restored += bodies
    finally:
        log.close()
    assert [(int(body.split()[0]), len(body)) for body in restored] == [
        (number, len(b"%d " % number) + size) for number, size in enumerate(SIZES)
    ]


def test_nothing_is_restored_beside_a_server_that_runs(tmp_path: Path) -> None:
    folder = backup(tmp_path)
    log = open_log(tmp_path / "data", LOG, clock=SystemClock(), metrics=Registry())
    try:
        (tmp_path / "data" / "commitlog").mkdir(exist_ok=True)
        with pytest.raises(CallerError, match="a server runs over"):
            restore_backup(folder, tmp_path / "data", None, LOG)
        assert not (tmp_path / "data" / "delay").exists()
    finally:
        log.close()


def test_a_page_ends_by_bytes_too() -> None:
    store = MemoryDelayStore()
    store.write(StoreChanges(added=messages()))
    sizes = [sum(len(one.delivery) for one in page) for page in read_pages(store, 1 << 20)]
    assert max(sizes) < (1 << 20) + (4 << 20)
    assert len(sizes) > 10
    assert sum(len(page) for page in read_pages(store)) == len(SIZES)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/made",
        "../made",
        "a/../../made",
        "",
        ".",
        "/",
        "\0",
        None,
        7,
        "outside/made",
        "\n",
        "dirty\n",
        "a b",
        "dirty\x1b[31m",
        "mäde",
        "a/b\n/c",
        "x" * 101,
        "$(made)",
        "~",
        "circle",
    ],
)
def test_backups_go_below_their_folder_alone(tmp_path: Path, name: object) -> None:
    """Also through a symbolic link; and what is refused does not tell what is there."""
    backups = tmp_path / "backups"
    backups.mkdir()
    (backups / "outside").symlink_to(tmp_path)
    (backups / "circle").symlink_to("circle")
    with pytest.raises(CallerError, match=f"backups go below {backups} on the server's machine") as refused:
        backup_folder(name, backups)
    assert "made" not in str(refused.value) or str(name) in str(refused.value)


def test_shards_are_copied_only_into_a_backup_in_progress(tmp_path: Path) -> None:
    """Only who may read the folder knows its secret; and only while it is made."""
    backups, forwarded = tmp_path / "backups", []

    def forward(address: str, request: AdminRequest, *_: object) -> Text:
        folder, valid_secret = Path(request.body["folder"]), request.body["secret"]
        forwarded.append((address, request.body["shards"]))
        path = folder / SECRET_FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        check_secret(folder, valid_secret)
        for invalid_secret in (
            None,
            "",
            "0" * 64,
            valid_secret[:-1],
            valid_secret.upper() + "x",
            [valid_secret],
            "ä" * 64,
        ):
            with pytest.raises(CallerError, match="no backup 'today' is being made here"):
                check_secret(folder, invalid_secret)
        return Text("application/json", b"{}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddmq.server.delays.backup.forward_request", forward)
        make_backup(backups, backup_folder("today", backups), [], {"other:1": [3]}, 0)
    assert forwarded == [("other:1", [3])]
    assert not (backups / "today" / SECRET_FILE).exists()
    for secret in ("", None, "0" * 64):
        with pytest.raises(CallerError, match="no backup 'today' is being made here"):
            check_secret(backups / "today", secret)


def test_a_backup_that_fails_leaves_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "backups" / "today"
    with pytest.raises(TryLaterError):
        make_backup(tmp_path / "backups", folder, [], {"127.0.0.1:1": [3]}, 0)
    assert list(folder.iterdir()) == []


def test_a_shard_that_is_there_is_not_copied_twice(tmp_path: Path) -> None:
    class Untouched(MemoryDelayStore):
        def checkpoint(self, folder: Path) -> None:
            raise AssertionError("the folder is there")

    (tmp_path / "0").mkdir()
    with pytest.raises(CallerError, match="has shard 0 already"):
        copy_shards(tmp_path, [OpenShard(0, Untouched())])


def test_a_backup_is_named_by_its_name_or_its_full_path(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    assert backup_folder("today", backups) == backup_folder(str(backups / "today"), backups)
    before = os.umask(0)
    try:
        make_backup(backups, backup_folder("today", backups), [], {}, 0)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (backups, backups / "today")] == [0o700, 0o700]


@pytest.mark.slow
@pytest.mark.parametrize("beside_its_log", [False, True])
def test_a_damaged_backup_is_restored_as_far_as_it_goes_and_says_so(
    tmp_path: Path, beside_its_log: bool
) -> None:
    folder = backup(tmp_path)
    for manifest in (folder / "0").glob("MANIFEST-*"):
        manifest.unlink()
    data = tmp_path / "data"
    if beside_its_log:
        open_log(data, LOG, clock=SystemClock(), metrics=Registry()).close()
        (data / "commitlog").mkdir(exist_ok=True)
    assert restore_backup(folder, data, None, LOG).damaged == (0,)


@pytest.mark.slow
def test_the_command_ends_with_1_after_a_damaged_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = backup(tmp_path)
    arguments = ("delay", "restore", str(folder), "--data-dir")
    assert run((*arguments, str(tmp_path / "whole"))) == 0
    assert "messages wait in a new log" in capsys.readouterr().out
    for manifest in (folder / "0").glob("MANIFEST-*"):
        manifest.unlink()
    assert run((*arguments, str(tmp_path / "data"))) == 1
    captured = capsys.readouterr()
    assert "messages wait in a new log" in captured.out, "what could be read is there"
    assert captured.err.splitlines()[-1] == (
        "Error: the backup is damaged in shard 0: what could be read is restored,"
        " the log says what was left out"
    )
