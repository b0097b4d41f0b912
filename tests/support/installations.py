"""What a test's servers stand on: `installation` runs a test once on the file log and once on Kafka.

An installation is what several servers, or several lives of one, have in common: on the file log their
folder, on Kafka a namespace of its own on the broker of the run. What Kafka cannot be asked is listed in
not_on_kafka.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka import broker, delete_topics, fresh_name

ENGINES = ("file_log", pytest.param("kafka", marks=(pytest.mark.slow, pytest.mark.kafka)))
SESSION_MS = 10_000  # a busy machine may hold a process up for the default


class Installation:
    """On the file log, which needs no word of a configuration."""

    engine = "file_log"

    def configured(self, folder: Path, config: Path | None) -> Path | None:
        """The --config folder of a server in `folder`, which else has `config`."""
        return config

    def close(self) -> None:
        """Nothing of it is left on the broker."""


class KafkaInstallation(Installation):
    """On the run's broker."""

    engine = "kafka"

    def __init__(self) -> None:
        self._name = fresh_name()

    def configured(self, folder: Path, config: Path | None) -> Path:
        config = config or folder / "conf"
        config.mkdir(parents=True, exist_ok=True)
        names = {"namespace": self._name, "topic_prefix": f"{self._name}."}
        settings = {"bootstrap": broker(), **names, "session_ms": SESSION_MS}
        tree = {"engine": "kafka", "kafka": settings}
        (config / "backend.yaml").write_text(json.dumps(tree))
        return config

    def close(self) -> None:
        delete_topics(self._name)


@contextmanager
def installed(engine: str) -> Iterator[Installation]:
    """One more installation on this engine."""
    target = KafkaInstallation() if engine == "kafka" else Installation()
    try:
        yield target
    finally:
        target.close()


@pytest.fixture(scope="session", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of the engine that this test runs on."""
    return str(request.param)


@pytest.fixture
def installation(engine: str) -> Iterator[Installation]:
    """One of the test's own, for servers that it starts itself."""
    with installed(engine) as target:
        yield target
