"""The audit log: its files, what a flood costs, what a crash leaves, and that it has no secrets."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddmq_common.security import audit
from ddmq_common.security.audit import Actor, AuditFiles, AuditLog

ACTOR = Actor("app", "192.0.2.1:40112", "client")


class Cell:
    value = 0.0


class TimerByHand:
    """A timer that rings when the test says so."""

    def __init__(self) -> None:
        self.ring: Callable[[], object] | None = None

    def every(self, _: float, ring: Callable[[], object]) -> None:
        self.ring = ring

    def stop(self) -> None:
        self.ring = None


class LaterCalls:
    """Runs blocking calls when the test says so, as a native thread would."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Callable[..., Any], tuple[object, ...]]] = []

    def __call__(self, call: Callable[..., Any], done: Callable[..., Any], *arguments: object) -> None:
        self.calls.append((call, done, arguments))

    def run_all(self) -> None:
        while self.calls:
            call, done, arguments = self.calls.pop(0)
            try:
                done(call(*arguments), None)
            except OSError as error:
                done(None, error)


class Kit:
    def __init__(self, folder: Path, bytes_max: int = 1 << 20) -> None:
        self.folder, self.now_ms = folder, 1_000
        self.timer, self.later = TimerByHand(), LaterCalls()
        self.written, self.dropped = Cell(), Cell()
        self.log = AuditLog(
            AuditFiles(folder, "server", bytes_max, 3), AuditFiles(folder, "server.rejected", bytes_max, 3),
            lambda: self.now_ms, self.timer, self.written, self.dropped, self.later,
        )  # fmt: skip

    def lines(self) -> list[dict[str, Any]]:
        self.later.run_all()
        files = [self.folder / f"{name}.jsonl" for name in ("server", "server.rejected")]
        texts = [file.read_text() for file in files if file.exists()]
        return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path / "audit")


def test_a_change_says_who_did_what_to_which_object(kit: Kit) -> None:
    kit.log.record_change(ACTOR, "DELETE /topics/{topic}", "topic=orders")
    assert kit.lines() == [
        {
            "at_ms": 1_000, "event": "change", "who": "app", "address": "192.0.2.1:40112",
            "client": "client", "action": "DELETE /topics/{topic}", "object": "topic=orders",
        }
    ]  # fmt: skip
    assert kit.written.value == 1


def test_only_the_owner_may_read_the_files(kit: Kit) -> None:
    kit.log.record_login(ACTOR)
    kit.later.run_all()
    assert stat.S_IMODE((kit.folder / "server.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(kit.folder.stat().st_mode) == 0o700


def test_a_flood_of_rejections_is_one_line_a_second_with_a_count(kit: Kit) -> None:
    for _ in range(100_000):
        kit.log.record_rejection(ACTOR, "sendSync", "lacks the right `send orders`")
    assert [line.get("count", 1) for line in kit.lines()] == [1]
    assert kit.timer.ring is not None
    kit.timer.ring()
    kit.timer.ring()
    assert [line.get("count", 1) for line in kit.lines()] == [1, 99_999]
    assert kit.timer.ring is None
    kit.log.record_rejection(ACTOR, "sendSync", "lacks the right `send orders`")
    assert [line.get("count", 1) for line in kit.lines()] == [1, 99_999, 1]


def test_a_flood_of_names_is_bounded_and_what_is_dropped_is_counted(kit: Kit) -> None:
    for number in range(audit.REPEATS_MAX + 500):
        kit.log.record_rejection(ACTOR, "sendSync", f"lacks the right `send t{number}`")
    for number in range(audit.QUEUE_MAX + 500):
        kit.log.record_change(ACTOR, "POST /topics/{topic}", f"topic=t{number}")
    kit.later.run_all()
    everything = 2 * 500 + audit.REPEATS_MAX + audit.QUEUE_MAX
    assert kit.written.value + kit.dropped.value == everything
    assert kit.written.value == audit.QUEUE_MAX + 1  # the first was on its way already


def test_files_rotate_by_size_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "audit", bytes_max=400)
    for number in range(40):
        kit.log.record_change(ACTOR, "POST /topics/{topic}", f"topic=t{number}")
        kit.later.run_all()
    names = sorted(path.name for path in kit.folder.iterdir())
    assert names == ["server.1.jsonl", "server.2.jsonl", "server.jsonl"]
    assert all(path.stat().st_size <= 400 for path in kit.folder.iterdir())
    texts = [(kit.folder / name).read_text() for name in ("server.2.jsonl", "server.1.jsonl", "server.jsonl")]
    topics = [json.loads(line)["object"] for text in texts for line in text.splitlines()]
    assert topics == [f"topic=t{number}" for number in range(40 - len(topics), 40)]


def test_a_flood_of_rejections_displaces_no_change(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "audit", bytes_max=1_000)
    kit.log.record_login(ACTOR)
    kit.log.record_change(ACTOR, "DELETE /topics/{topic}", "topic=orders")
    for number in range(1_000):
        kit.log.record_rejection(ACTOR, "sendSync", f"lacks the right `send t{number}`")
        kit.log.record_login(ACTOR, f"wrong {number}")
        kit.later.run_all()
    assert [line["event"] for line in kit.lines()][:2] == ["login", "change"]
    assert len(list(kit.folder.iterdir())) == 4


def test_a_line_that_a_crash_cut_off_does_not_damage_the_next_one(kit: Kit) -> None:
    kit.folder.mkdir(mode=0o700)
    (kit.folder / "server.jsonl").write_bytes(b'{"at_ms":1,"event":"change"}\n{"at_ms":2,"ev')
    kit.log.record_change(ACTOR, "POST /topics/{topic}", "topic=t")
    kit.later.run_all()
    texts = (kit.folder / "server.jsonl").read_text().splitlines()
    assert texts[1] == '{"at_ms":2,"ev'
    assert json.loads(texts[2])["object"] == "topic=t"


def test_what_the_disk_does_not_take_is_counted_and_the_next_line_is_written(kit: Kit) -> None:
    kit.folder.write_text("a file where the folder would be")
    kit.log.record_change(ACTOR, "POST /topics/{topic}", "topic=a")
    kit.later.run_all()
    assert (kit.written.value, kit.dropped.value) == (0, 1)
    kit.folder.unlink()
    kit.log.record_change(ACTOR, "POST /topics/{topic}", "topic=b")
    assert [line["object"] for line in kit.lines()] == ["topic=b"]


def test_texts_of_clients_are_cleaned_and_cut(kit: Kit) -> None:
    kit.log.record_rejection(Actor("app", "a", "\x1b[31m\n" + "x" * 1_000), "sendSync", "no\u202eright")
    (line,) = kit.lines()
    assert "\x1b" not in line["client"]
    assert "\n" not in line["client"]
    assert len(line["client"]) < 300
    assert "\u202e" not in line["reason"]


def test_closing_writes_what_is_queued_and_the_repetitions(kit: Kit) -> None:
    for _ in range(3):
        kit.log.record_rejection(ACTOR, "pull", "over the quota requests_per_s")
    kit.later.run_all()
    kit.log.close()
    assert [line.get("count", 1) for line in kit.lines()] == [1, 2]
