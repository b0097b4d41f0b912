"""The metrics of a whole process, as Prometheus sees them: while messages flow, wait, and after a restart."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ddmq_common.metrics.catalogue import CATALOGUE
from tests.interop.apache_client import Client, done
from tests.scenarios.real_server import RealServer, running
from tests.support.waits import until

HERE = {"group": "g", "topic": "t"}


def test_a_process_reports_where_messages_are(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})
        with Client(server.ports["producer"]) as producer:
            for number in range(10):
                assert producer.send("t", b"%d" % number, partitionId=0).code == 0
        with Client(server.ports["consumer"]) as consumer:
            pulled = consumer.pull("g", maxBatchSize=6, maxLingerTime=10_000)
            assert len(pulled.messages) == 6
            pulled.messages = pulled.messages[:4]
            assert consumer.submit(done(pulled))
            until(lambda: server.metric("ddmq_lag", **HERE) == 6, "the lag is told")
            assert server.metric("ddmq_inflight", **HERE) == 2
            until(lambda: server.metric("ddmq_lag_age_ms", **HERE) > 0, "its age is told")
        assert server.metric("ddmq_send_latency_us_count", topic="t") == 10
        assert server.metric("ddmq_queue_wait_us_count", **HERE) == 1
        assert server.metric("ddmq_process_us_count", **HERE) == 1
        for name in (
            "ddmq_log_commit_records_count",
            "ddmq_log_commit_bytes_sum",
            "ddmq_hub_blocked_us_count",
        ):
            assert server.metric(name) > 0, name
        until(lambda: server.metric("ddmq_log_bytes") > 0, "retention has looked")
        _check_page(server)
    with running(tmp_path, processes=True) as server:  # the consumer proxy is not the log's writer here
        until(lambda: server.metric("ddmq_lag", **HERE) == 6, "told although nobody pulls")
        until(lambda: server.metric("ddmq_lag_age_ms", **HERE) > 0, "and how old it is")


def _check_page(server: RealServer) -> None:
    """Prometheus' own parser reads it, and every metric in it is one of the catalogue."""
    status, text = server.request("GET", "/metrics")
    assert status == 200
    counted = {name.removesuffix("_total") for name in CATALOGUE}
    for family in text_string_to_metric_families(text):
        assert family.name in counted, family.name
