"""T20f, on Kafka: delay services with empty directories, and the hand-over of what is warm.

So many messages wait (DDMQ_BENCH_PENDING, 10 million by default): rows of %DELAY-WAITING. Two services start
with nothing: `per_s` rows, until all of them have all, as owner or as standby. Then one is killed: `seconds`
until the other one fires in every shard.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from backend.kafka.options import KafkaOptions
from bench import groups
from bench.delay_messages import messages
from bench.delay_rig import PENDING, PENDING_BODY
from bench.harness import CLIENT_CORE, SERVER_CORE, Series
from bench.kafka.bare import PRODUCER
from bench.kafka.rig import Rig
from bench.servers import Running, start
from ddmq_common.names import WAITING_TOPIC
from delay_service.waiting.rows import value_of

SHARDS = 4
AT_ONCE = 1_000
DUE_MS = 20 * 86_400_000  # from now
GIVE_UP_S = 3_600.0


def rows(first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of each."""
    noise, due_ms = random.Random(first), int(time.time() * 1_000) + DUE_MS
    for at in range(first, first + count, AT_ONCE):
        for one in messages(noise, at, min(AT_ONCE, first + count - at), PENDING_BODY, due_ms):
            yield one.uuid.hex().encode(), value_of(one)


def fill(rig: Rig, count: int) -> None:
    topic = KafkaOptions(rig.bootstrap).names.to_kafka(WAITING_TOPIC)
    producer = Producer({**PRODUCER, "linger.ms": 5, "bootstrap.servers": rig.bootstrap})
    for number, (key, value) in enumerate(rows(0, count)):
        while True:
            try:
                producer.produce(topic, value, key, partition=number % SHARDS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


def state(service: Running) -> Any:
    return groups.admin(service, "GET", "/delay")


def wait(what: str, condition: Any) -> float:
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > GIVE_UP_S:
            raise AssertionError(f"after {GIVE_UP_S:g} s not yet: {what}")
        time.sleep(0.02)
    return time.perf_counter() - began


def service(rig: Rig, folder: Path, core: int) -> Running:
    arguments = ["--backend", "kafka", "--bootstrap", rig.bootstrap, "--admin", "127.0.0.1:0"]
    return start(["ddmq", "delay-service", "--data-dir", str(folder), *arguments], {core})


def measure(rig: Rig, count: int) -> dict[str, float]:
    """One round; raises unless all of them wait at the end."""
    folders = [rig.folder / rig.name("restored") for _ in range(2)]
    with ExitStack() as stack:
        began = time.perf_counter()
        pair = [
            stack.enter_context(service(rig, folder, core))
            for folder, core in zip(folders, (SERVER_CORE, CLIENT_CORE), strict=True)
        ]

        def restored() -> bool:
            statuses = [state(one) for one in pair]
            warm = sum(standby["warm"] for each in statuses for standby in each["standbys"])
            return sum(each["pending"] for each in statuses) == count and warm == SHARDS

        wait("all shards are restored, as owner and as standby", restored)
        seconds = time.perf_counter() - began
        pair[0].kill()
        handed_over = wait("the other one fires in all shards", lambda: state(pair[1])["pending"] == count)
        store = sum(path.stat().st_blocks * 512 for path in folders[1].rglob("*") if path.is_file()) >> 20
        figures = {"per_s": 2 * count / seconds, "seconds": seconds, "hand_over_s": handed_over}
        figures |= {"store_mib": store, "rss_anon_mib": pair[1].memory()["RssAnon"] / (1 << 20)}
    for folder in folders:
        shutil.rmtree(folder)
    return figures


def main(rig: Rig) -> None:
    service(rig, rig.folder / rig.name("first"), SERVER_CORE).stop()  # makes the topics
    began = time.perf_counter()
    fill(rig, PENDING)
    facts = {"pending": PENDING, "written_per_s": round(PENDING / (time.perf_counter() - began))}
    title = "two empty services have all"
    rig.run("t20f_kafka_restore", __doc__ or "", [Series(title, lambda: measure(rig, PENDING))], 1, **facts)
