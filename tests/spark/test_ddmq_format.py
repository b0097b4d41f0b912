"""The Spark format `ddmq` against the real server: read, streamed, killed, written, refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ddmq_client import OutgoingMessage, Producer
from metrics_job.sparksource import DdmqSource
from tests.scenarios.real_server import RealServer, running, write_config
from tests.spark.few_rows import worker_was_late
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]
ROOT = Path(__file__).resolve().parents[2]
COUNT = 600
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("spark-format")) as ready:
        yield ready


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(DdmqSource)
    return spark


def send(server: RealServer, topic: str, count: int = COUNT, first: int = 0) -> None:
    """Bodies are numbers; every third has no key, tags and properties."""
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        messages = [
            OutgoingMessage(topic, b"%d" % n, shard_key=n)
            if n % 3 == 0
            else OutgoingMessage(
                topic, b"%d" % n, key=f"k{n}", tags="odd", properties={"n": str(n)}, shard_key=n
            )
            for n in range(first, first + count)
        ]
        assert all(result.stored for result in producer.send_batch(messages))


def consumers(server: RealServer) -> str:
    return f"127.0.0.1:{server.ports['consumer']}"


def producers(server: RealServer) -> str:
    return f"127.0.0.1:{server.ports['producer']}"


def batch(source: SparkSession, server: RealServer, topic: str, **options: Any) -> DataFrame:
    reader = source.read.format("ddmq").option("servers", consumers(server)).option("topic", topic)
    return reader.options(**options).load()


def stream(source: SparkSession, server: RealServer, topic: str, **options: Any) -> DataFrame:
    reader = source.readStream.format("ddmq").option("servers", consumers(server)).option("topic", topic)
    return reader.options(**options).load()


def bodies(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def to_files(frame: DataFrame, folder: Path, *columns: str, form: str = "parquet") -> Any:
    """Numbers, into `out` in a folder that has the checkpoint, too."""
    rows = frame.selectExpr(*columns, "cast(cast(value as string) as int) as value")
    out = rows.writeStream.format(form).option("path", str(folder / "out"))
    return out.option("checkpointLocation", str(folder / "at"))


def in_files(source: SparkSession, folder: Path) -> list[int]:
    return sorted(row.value for row in source.read.parquet(str(folder / "out")).collect())


def finish(writer: Any) -> None:
    """Runs it to its end. Spark gives a Python worker 10 s to connect, a constant of its own: where the
    machine was too busy for that, it is run again."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S)
            return
        except StreamingQueryException as error:
            if "worker failed to connect back" not in str(error) or time.monotonic() > give_up:
                raise


def test_a_batch_has_every_message_with_all_its_columns(source: SparkSession, server: RealServer) -> None:
    send(server, "plain")
    rows = batch(source, server, "plain", maxMessagesPerPartition=70).collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(COUNT))
    assert {(row.topic, row.queue) for row in rows} == {("plain", queue) for queue in range(4)}
    by_queue: dict[int, list[int]] = {}
    for row in rows:
        by_queue.setdefault(row.queue, []).append(row.offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values()), "in order, no gaps"
    for row in rows:
        number = int(bytes(row.value))
        expected = (None, None, {}) if number % 3 == 0 else (f"k{number}".encode(), "odd", {"n": str(number)})
        assert (None if row.key is None else bytes(row.key), row.tags or None, row.properties) == expected
        assert len(row.message_id) == 32
        assert row.stored_at is not None
    assert len({row.message_id for row in rows}) == COUNT


def test_a_batch_between_offsets_and_times(source: SparkSession, server: RealServer) -> None:
    send(server, "parts", 100)
    some = batch(
        source,
        server,
        "parts",
        startingOffsets='{"parts": {"0": 3, "1": "last", "2": "last", "3": "last"}}',
        endingOffsets='{"parts": {"0": 7}}',
    )
    assert [(row.queue, row.offset) for row in some.collect()] == [(0, offset) for offset in range(3, 7)]
    moment = max(row.stored_at for row in batch(source, server, "parts").collect())
    until_then = int(moment.timestamp() * 1000) + 1
    assert batch(source, server, "parts", startingOffsets=str(until_then)).count() == 0
    assert batch(source, server, "parts", endingOffsets=str(until_then)).count() == 100


def test_reading_moves_no_offsets_of_a_group(source: SparkSession, server: RealServer) -> None:
    send(server, "quiet", 20)
    server.admin("POST", "groups", "readers", body={"topics": ["quiet"], "start": "first"})
    before = server.admin("GET", "groups", "readers", "offsets")
    assert batch(source, server, "quiet").count() == 20
    assert server.admin("GET", "groups", "readers", "offsets") == before


def test_a_stream_resumes_at_its_checkpoint(source: SparkSession, server: RealServer, tmp_path: Path) -> None:
    send(server, "going", 200)
    frame = stream(source, server, "going", startingOffsets="first", maxMessagesPerTrigger=90)
    writer = to_files(frame, tmp_path, "queue", "offset")
    query = writer.start()

    def three_batches() -> bool:
        nonlocal query
        if worker_was_late(query):
            query = writer.start()
        return len(list((tmp_path / "at" / "commits").glob("[0-9]*"))) >= 3

    try:
        until(three_batches, "three batches", PATIENCE_S)
    finally:
        query.stop()
    send(server, "going", 100, first=200)
    finish(writer)
    assert in_files(source, tmp_path) == list(range(300))


@pytest.mark.long
def test_a_killed_stream_resumes_and_has_every_message_once(
    source: SparkSession, server: RealServer, tmp_path: Path
) -> None:
    send(server, "killed", 1_500)
    at = tmp_path / "at"
    command = [sys.executable, "-m", "tests.spark.stream_to_files", consumers(server), "killed"]
    command += [str(tmp_path / "out"), str(at), "100"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log, start_new_session=True)

    def in_mid_batch() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
        begun_batches, done = (len(list((at / name).glob("[0-9]*"))) for name in ("offsets", "commits"))
        return begun_batches > done >= 1

    try:
        until(in_mid_batch, "a batch that is begun and not committed", PATIENCE_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = len(list((at / "commits").glob("[0-9]*")))
    assert done < 15, "there was something left"
    frame = stream(source, server, "killed", startingOffsets="first", maxMessagesPerTrigger=2_000)
    finish(to_files(frame, tmp_path, "queue", "offset", form="json"))
    rows = source.read.schema("queue int, offset long, value int").json(str(tmp_path / "out")).collect()
    assert Counter(row.value for row in rows) == dict.fromkeys(range(1_500), 1)
    assert len({(row.queue, row.offset) for row in rows}) == 1_500


def test_written_rows_can_be_read_with_their_position_in_the_write(
    source: SparkSession, server: RealServer
) -> None:
    frame = source.range(120).repartition(3).selectExpr(
        "'written' as topic", "cast(id as string) as value", "concat('k', id % 7) as key",
        "'t' as tags", "map('a', cast(id as string)) as properties",
    )  # fmt: skip
    frame.write.format("ddmq").mode("append").option("servers", producers(server)).save()
    rows = batch(source, server, "written").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(120))
    assert all(row.properties["a"] == bytes(row.value).decode() for row in rows)
    assert {row.tags for row in rows} == {"t"}
    assert len({row.properties["spark-batch"] for row in rows}) == 120
    queues: dict[bytes, set[int]] = {}
    for row in rows:
        queues.setdefault(bytes(row.key), set()).add(row.queue)
    assert all(len(queues_of_key) == 1 for queues_of_key in queues.values()), "one key, one queue"


def test_a_batch_of_a_stream_that_spark_repeats_is_stored_once(
    source: SparkSession, server: RealServer, tmp_path: Path
) -> None:
    send(server, "from", 90)
    at = tmp_path / "at"
    frame = stream(source, server, "from", startingOffsets="first", maxMessagesPerTrigger=60)
    writer = (
        frame.select("value", "key")
        .writeStream.format("ddmq")
        .option("servers", producers(server))
        .option("topic", "to")
        .option("checkpointLocation", str(at))
    )
    finish(writer)
    (at / "commits" / "1").unlink()
    (at / "commits" / ".1.crc").unlink(missing_ok=True)
    send(server, "from", 30, first=90)  # the repeated batch ends where it ended
    finish(writer)
    rows = batch(source, server, "to").collect()
    numbers_of_key: dict[str, list[int]] = {}
    for row in rows:
        numbers_of_key.setdefault(row.properties["spark-batch"], []).append(int(bytes(row.value)))
    assert all(len(set(values)) == 1 for values in numbers_of_key.values()), "one name, one row"
    assert sorted(values[0] for values in numbers_of_key.values()) == list(range(120)), "all"
    assert len(rows) == 120, "the repeated batch is stored once"


def test_deleted_messages_fail_a_stream_or_are_skipped(
    source: SparkSession, server: RealServer, tmp_path: Path
) -> None:
    send(server, "gone", 80)

    def run(fail: str) -> None:
        frame = stream(source, server, "gone", startingOffsets="first", failOnDataLoss=fail)
        finish(to_files(frame, tmp_path))

    run("true")
    server.admin("DELETE", "topics", "gone")
    send(server, "gone", 20, first=1_000)
    with pytest.raises(StreamingQueryException, match=r"made anew.*failOnDataLoss"):
        run("true")
    run("false")
    assert in_files(source, tmp_path) == [*range(80), *range(1_000, 1_020)]


@pytest.mark.long
def test_messages_that_retention_took_before_a_stream_read_them(source: SparkSession, tmp_path: Path) -> None:
    log = {"segment_bytes": "64KiB", "allocate_bytes": "64KiB", "retention": {"log_bytes_max": "128KiB"}}
    with running(tmp_path / "server", write_config(tmp_path / "conf", file_log=log)) as small:

        def read(fail: str) -> set[int]:
            frame = stream(source, small, "short", startingOffsets="first", failOnDataLoss=fail)
            finish(to_files(frame, tmp_path))
            read_numbers = in_files(source, tmp_path)
            assert len(set(read_numbers)) == len(read_numbers)
            return set(read_numbers)

        send(small, "short", 40)
        assert read("true") == set(range(40))
        sent = 40
        while small.metric("ddmq_log_segments_deleted_total") < 4:
            send(small, "short", 400, first=sent)
            sent += 400
        with pytest.raises(StreamingQueryException, match=r"retention removed them.*failOnDataLoss"):
            read("true")
        numbers = read("false")
        assert set(range(40)) <= numbers
        assert sent - 1 in numbers
        assert 40 < len(numbers) < sent, "some were gone"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOfsets": "first"}, "did you mean startingOffsets"),
        ({"topics": "a,b"}, "either option topic"),
        ({"maxMessagesPerTrigger": "5"}, "maxMessagesPerTrigger is for streams only"),
    ],
)
def test_invalid_options_are_rejected_by_name(
    source: SparkSession, server: RealServer, options: dict[str, str], words: str
) -> None:
    with pytest.raises(AnalysisException, match=words):
        batch(source, server, "plain", **options).count()


def test_a_topic_that_does_not_exist_and_servers_that_are_not_there(
    source: SparkSession, server: RealServer
) -> None:
    with pytest.raises(PySparkException, match=r"topics \['nowhere'\] do not exist"):
        batch(source, server, "nowhere").count()
    reader = source.read.format("ddmq").options(servers="127.0.0.1:1", topic="plain", timeoutMs="200")
    with pytest.raises(PySparkException, match=r"no proxy of 127\.0\.0\.1:1 answered"):
        reader.load().count()


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (["'x' as value", "1L as offset"], "column 'offset' is given by the log"),
        (["'x' as value", "'y' as tag"], "column 'tag' is not known.*did you mean tags"),
        (["'x' as body"], "column 'body' is not known"),
        (["'k' as key"], "column value is missing"),
        (["1 as value"], "column value is int; allowed: string, binary"),
    ],
)
def test_unwritable_columns_are_rejected(
    source: SparkSession, server: RealServer, select: list[str], words: str
) -> None:
    writer = source.range(1).selectExpr(*select).write.format("ddmq").mode("append")
    with pytest.raises(PySparkException, match=words):
        writer.option("servers", producers(server)).option("topic", "refused").save()


def test_a_message_that_no_proxy_takes_fails_the_write(source: SparkSession, server: RealServer) -> None:
    writer = source.range(3).coalesce(1).selectExpr("'' as value").write.format("ddmq").mode("append")
    with pytest.raises(PySparkException, match="3 of 3 messages were not stored"):
        writer.option("servers", producers(server)).option("topic", "refused").save()
    writer = source.range(1).selectExpr("'x' as value").write.format("ddmq").mode("overwrite")
    with pytest.raises(PySparkException, match="only ever added"):
        writer.option("servers", producers(server)).option("topic", "refused").save()
