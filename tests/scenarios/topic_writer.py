"""A sender that fills the disk, until its topic is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ddmq_client import Producer, SendError

BODY = bytes(32 * 1024)
PAUSE_S = 0.03  # between two messages: a megabyte a second


class TopicWriter:
    """Sends to a topic until it is rejected."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.stopped = threading.Event()
        self.errors: list[SendError] = []

    def run(self) -> None:
        while not self.stopped.wait(PAUSE_S):
            try:
                self._producer.send(self._topic, BODY)
            except SendError as error:
                self.errors.append(error)
                self.stopped.set()


@contextmanager
def writing(producer: Producer, topic: str) -> Iterator[TopicWriter]:
    writer = TopicWriter(producer, topic)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.stopped.set()
        thread.join()
