"""A directory of a large installation: topics, groups, dead letters, keys and delays by the thousand.

    python -m bench.scale_data DATA_DIR TOPICS LETTERS KEYS

Joins the directory as one more process, and stores what servers would have stored, many records at a time.
Each topic `crowd-N` has one message and one group `group-N`, which has not consumed it. The dead letters of
the group LETTER_GROUP are of CLASSES error classes, one after the other, and each of its own topic. The topic
KEYED has two messages of each key, for the group of the same name, which fails them later (t27_large.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from backend.file_log import open_shared
from backend.port import Backend
from backend.records import AppendStatus, CommitBatch, NewRecord, StoredRecord, TopicInfo
from bench.delay_rig import STATE_FILE, prepared
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import dlq_topic
from proxy_consumer.groups.group import encode_group, encode_subscription, subscription_key
from proxy_consumer.retries.headers import RetryHeaders, dead_letter

LETTER_GROUP, KEYED, LETTER_TOPIC = "mailer", "keyed", "mail"
CLASSES = 10
BATCH = 1_000
WAIT_S = 120.0
BODY = b'{"customer":"4711","amount":12.50}'
KEY_SETTINGS = {
    "start": "first", "order_key": "KEY", "ordered_deliveries_max": -1, "ordered_interval_ms": 3_600_000,
    "retry_intervals_ms": [], "retrying_max": 1_000_000, "concurrency": 1_000_000,
}  # fmt: skip
DONE = "scale"
T = TypeVar("T")


def prepare(pending: int, topics: int, letters: int, keys: int) -> Path:
    """The data directory with all of that, and so many delays pending; made when there is none."""
    folder = prepared(pending)
    path = folder / STATE_FILE
    state = json.loads(path.read_text())
    sizes = [topics, letters, keys]
    if state.get(DONE) != sizes:
        if DONE in state:
            raise SystemExit(f"{folder} has {state[DONE]} topics, letters and keys; delete it")
        command = [sys.executable, "-m", "bench.scale_data", str(folder / "data"), *map(str, sizes)]
        subprocess.run(command, check=True)
        path.write_text(json.dumps(json.loads(path.read_text()) | {DONE: sizes}))
    return folder / "data"


class Filler:
    """Stores topics, settings and records in one directory."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._clock = SystemClock()

    def create_topics(self, names: Iterable[str], queues: int = 1) -> None:
        for batch in _batches(names):
            started = [
                self._backend.put_topic(TopicInfo(name, 0, queues), self._deadline()) for name in batch
            ]
            for each in started:
                each.wait(WAIT_S)

    def subscribe(self, pairs: Iterable[tuple[str, str]], **settings: object) -> None:
        """Create each group with its subscription to its topic."""
        now_ms = self._clock.wall_ms()
        for batch in _batches(pairs):
            values: dict[str, bytes | None] = {}
            for group, topic in batch:
                values[f"group/{group}"] = encode_group(now_ms, "log")
                values[subscription_key(group, topic)] = encode_subscription(settings, now_ms, "log")
            self._backend.commit(CommitBatch(settings=values), self._deadline()).wait(WAIT_S)

    def append(self, records: Iterable[NewRecord]) -> None:
        for batch in _batches(records):
            for result in self._backend.append(batch, self._deadline()).wait(WAIT_S):
                if result.status is not AppendStatus.STORED:
                    raise AssertionError(f"a record was not stored: {result}")

    def messages(self, topic: str, keys: Iterable[tuple[int, bytes]]) -> Iterator[NewRecord]:
        """One message of each key, in the queue that is named with it."""
        for number, (queue, key) in enumerate(keys):
            yield NewRecord(
                topic, queue, number.to_bytes(16, "big"), self._clock.wall_ms(), encode(key, BODY, b"", {})
            )

    def letters(self, count: int) -> Iterator[NewRecord]:
        """Dead letters: `count` divided by CLASSES of the class Error0, then as many of Error1, …"""
        for number in range(count):
            error_class = number * CLASSES // count
            topic = f"{LETTER_TOPIC}-{error_class}"
            body = encode(b"k%d" % number, BODY, b"", None)
            record = StoredRecord(
                topic, 0, number, 0, number.to_bytes(16, "big"), self._clock.wall_ms(), 1, 0, 0, body, {}
            )
            error = f"Error{error_class}: customer {number} has no address"
            headers = RetryHeaders(0, topic, 0, number, 4, 0, error)
            yield dead_letter(LETTER_GROUP, record, headers, "failed", self._clock.wall_ms())

    def _deadline(self) -> float:
        return self._clock.monotonic() + WAIT_S


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def fill(backend: Backend, topics: int, letters: int, keys: int) -> None:
    """Store all of it."""
    filler = Filler(backend)
    crowd = [f"crowd-{number}" for number in range(topics)]
    filler.create_topics(crowd)
    filler.subscribe((f"group-{number}", topic) for number, topic in enumerate(crowd))
    filler.append(record for topic in crowd for record in filler.messages(topic, [(0, b"")]))
    letter_topics = [f"{LETTER_TOPIC}-{number}" for number in range(CLASSES)]
    filler.create_topics([*letter_topics, dlq_topic(LETTER_GROUP)])
    filler.subscribe((LETTER_GROUP, topic) for topic in letter_topics)
    filler.append(filler.letters(letters))
    filler.create_topics([KEYED], queues=4)
    filler.subscribe([(KEYED, KEYED)], **KEY_SETTINGS)
    every_key = [(key % 4, b"key-%d" % key) for key in range(keys)]
    filler.append(filler.messages(KEYED, every_key * 2))


def main() -> None:
    directory = Path(sys.argv[1])
    topics, letters, keys = map(int, sys.argv[2:])
    backend = open_shared(directory, clock=SystemClock(), metrics=Registry())
    began = time.perf_counter()
    fill(backend, topics, letters, keys)
    print(f"   filled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    backend.close()


if __name__ == "__main__":
    main()
