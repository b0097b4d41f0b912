"""Spans of the library go through a real OpenTelemetry collector and come out as the library meant them.

The collector is what DDMQ_OTELCOL names, else `otelcol` or `otelcol-contrib` on the PATH: any that has the
receiver `otlp` and the exporter `otlphttp`. It sends on to a server of this test, as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ddmq_client import Consumer, Message, OutgoingMessage, Producer
from ddmq_client.opentelemetry import OpenTelemetryObserver
from tests.scenarios.real_server import running
from tests.support.ports import port_of, reserved
from tests.support.waits import until

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000
PRODUCER, CONSUMER, CLIENT, INTERNAL = 4, 5, 3, 1  # kinds as OTLP has them
ERROR = 2


def collector() -> str | None:
    """The program, if there is any."""
    named = os.environ.get("DDMQ_OTELCOL")
    return named or shutil.which("otelcol") or shutil.which("otelcol-contrib")


class Sink:
    """Takes what the collector exports: spans by service."""

    def __init__(self) -> None:
        self.spans: dict[str, list[dict[str, Any]]] = defaultdict(list)
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sink.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request: dict[str, Any]) -> None:
        for resource in request["resourceSpans"]:
            service = attributes(resource["resource"])["service.name"]
            for scope in resource["scopeSpans"]:
                assert scope["scope"]["name"] == "ddmq_client"
                assert scope["schemaUrl"].startswith("https://opentelemetry.io/schemas/")
                self.spans[service] += scope["spans"]

    def named(self, service: str, name: str) -> list[dict[str, Any]]:
        return [span for span in list(self.spans[service]) if span["name"] == name]


def attributes(record: dict[str, Any]) -> dict[str, Any]:
    """OTLP's JSON has each value under its type, and integers as text."""
    values = {}
    for each in record.get("attributes", ()):
        ((kind, value),) = each["value"].items()
        values[each["key"]] = int(value) if kind == "intValue" else value
    return values


def links(span: dict[str, Any]) -> list[tuple[str, str]]:
    return [(link["traceId"], link["spanId"]) for link in span.get("links", ())]


def ids_of(span: dict[str, Any]) -> tuple[str, str]:
    return span["traceId"], span["spanId"]


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture
def sink() -> Iterator[Sink]:
    collector_sink = Sink()
    yield collector_sink
    collector_sink.server.shutdown()
    collector_sink.server.server_close()


@pytest.fixture
def receiver(sink: Sink, tmp_path: Path) -> Iterator[str]:
    """Where a collector takes spans that it brings to the sink."""
    program = collector()
    if program is None:
        pytest.skip("no collector: DDMQ_OTELCOL names none, and there is no otelcol on the PATH")
    reservation = reserved()
    port = port_of(reservation)
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {
            "otlphttp": {
                "endpoint": f"http://127.0.0.1:{sink.port}", "encoding": "json", "compression": "none",
            },
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlphttp"]}},
        },
    }  # fmt: skip
    (tmp_path / "collector.yaml").write_text(json.dumps(config))
    with (tmp_path / "collector.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--config", str(tmp_path / "collector.yaml")], stdout=log, stderr=log
        )
    try:
        until(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "collector.log").read_text()
        yield f"http://127.0.0.1:{port}/v1/traces"
    finally:
        process.terminate()
        process.wait(60)
        reservation.close()


def exporting(receiver: str, service: str) -> TracerProvider:
    provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(receiver)))
    return provider


def test_a_collector_gets_every_span_of_a_message(receiver: str, sink: Sink, tmp_path: Path) -> None:
    shop, billing = exporting(receiver, "shop"), exporting(receiver, "billing")
    batches: list[int] = []
    attempts: list[int | None] = []

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("out of stock")

    with running(tmp_path / "server") as server:
        producers, consumers = (
            f"127.0.0.1:{server.ports[component]}" for component in ("producer", "consumer")
        )
        for topic in ("orders", "invoices"):
            server.admin("POST", "topics", topic, body={"create": True})
            server.admin("POST", "groups", "billing", "topics", topic, body={"start": "first"})
        with Producer(producers, timeout_ms=PATIENCE_MS, observer=OpenTelemetryObserver(shop)) as producer:
            stored = producer.send("orders", b"one espresso")
            producer.send_batch([OutgoingMessage("invoices", f"m{at}") for at in range(3)])
        observer = OpenTelemetryObserver(billing)
        with (
            Consumer(consumers, "billing", "orders", handler=handle, observer=observer),
            Consumer(
                consumers, "billing", "invoices", batch_handler=lambda m: batches.append(len(m)),
                observer=observer,
            ),
        ):  # fmt: skip
            until(lambda: sum(batches) == 3 and attempts == [1, 2])
        shop.force_flush()
        billing.force_flush()
        until(lambda: len(sink.named("billing", "process orders")) == 2)
        until(lambda: sum(len(links(span)) for span in sink.named("billing", "process invoices")) == 3)
    shop.shutdown()
    billing.shutdown()
    (sent,) = sink.named("shop", "send orders")
    assert sent["kind"] == PRODUCER
    assert attributes(sent)["messaging.message.id"] == stored.message_id
    first, second = sorted(
        sink.named("billing", "process orders"), key=lambda span: int(span["startTimeUnixNano"])
    )
    for number, span in enumerate((first, second), 1):
        assert (span["kind"], span["traceId"], span["parentSpanId"]) == (CONSUMER, *ids_of(sent))
        assert links(span) == [ids_of(sent)]
        assert attributes(span)["messaging.ddmq.message.delivery_count"] == number
    assert first["status"]["code"] == ERROR
    assert attributes(first)["error.type"] == "ValueError"
    assert attributes(first["events"][0])["exception.message"] == "out of stock"
    assert "code" not in second["status"]
    for span in sink.named("billing", "deliver orders"):
        assert (span["kind"], span["traceId"], span["parentSpanId"]) == (INTERNAL, *ids_of(sent))
    created = sink.named("shop", "create invoices")
    (batch,) = sink.named("shop", "send invoices")
    assert batch["kind"] == CLIENT
    assert links(batch) == [ids_of(span) for span in created]
    handled = sink.named("billing", "process invoices")
    assert sorted(link for span in handled for link in links(span)) == sorted(map(ids_of, created))
    assert not any(span.get("parentSpanId") for span in handled)
