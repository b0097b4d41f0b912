"""The examples of docs/spark.md, one after the other as they stand there, against the real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ddmq_client import OutgoingMessage, Producer
from tests.scenarios.real_server import running
from tests.spark.few_rows import worker_was_late
from tests.support.pages import page_blocks
from tests.support.waits import until

PATIENCE_S = 600.0
PAGE = "docs/spark.md"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_can_be_copied(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "server") as server:
        with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
            for topic in ("orders", "refunds"):
                messages = [OutgoingMessage(topic, b"%d" % n, key=f"k{n}", shard_key=n) for n in range(30)]
                assert all(result.stored for result in producer.send_batch(messages))
        names: dict[str, Any] = {}
        streaming = ""
        for block in page_blocks(PAGE, "python"):
            text = block.text
            for port, component in (("9713", "consumer"), ("9613", "producer")):
                text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[component]}")
            text = text.replace('"lake/', f'"{tmp_path}/lake/')
            exec(compile(text, PAGE, "exec"), names)
            streaming = text if "writeStream" in text else streaming
        commits = tmp_path / "lake" / "orders-checkpoint" / "commits"

        def a_batch() -> bool:
            if worker_was_late(names["query"]):
                exec(compile(streaming, PAGE, "exec"), names)
            return any(commits.glob("[0-9]*"))

        until(a_batch, "a batch of the stream", PATIENCE_S)
        names["query"].stop()
        assert spark.read.parquet(str(tmp_path / "lake" / "orders")).count() == 60
        assert {bytes(row.value) for row in names["once"].collect()} == {b"copy of %d" % n for n in range(30)}
        assert "0 0 " in capsys.readouterr().out
