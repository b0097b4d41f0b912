"""The actors of the Dramatiq scenarios: a module for `python -m dramatiq`, and a worker to be killed.

DRAMATIQ_APP is the HOST:PORT of producer, consumer and admin, the namespace, and the file to which actors
write what they do, with commas.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dramatiq
from dramatiq.middleware import CurrentMessage

from ddmq_client.dramatiq import DdmqBroker
from tests.support.waits import until

producer, consumer, admin, namespace, output = os.environ["DRAMATIQ_APP"].split(",")
broker = DdmqBroker(producer, consumer, admin=admin, namespace=namespace)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


def append_line(text: str) -> None:
    """Append one line."""
    with open(output, "a") as file:
        file.write(f"{text}\n")


@dramatiq.actor(queue_name="first", min_backoff=10, max_backoff=20)
def first(number: int) -> int:
    """Fail once for each number, then hand it on."""
    message = CurrentMessage.get_current_message()
    assert message is not None
    append_line(f"first {number}")
    if not message.options.get("retries"):
        raise ValueError(f"{number} is new")
    return number


@dramatiq.actor(queue_name="second")
def second(number: int) -> None:
    """Take what `first` has handed on."""
    append_line(f"second {number}")


@dramatiq.actor(queue_name="gate")
def wait_for(path: str) -> None:
    """Run until the file exists."""
    append_line(f"began {path}")
    until(lambda: Path(path).exists(), "the test opens the gate")
    append_line(f"ended {path}")


if __name__ == "__main__":
    dramatiq.Worker(broker, worker_timeout=100, worker_threads=4).start()
    signal.pause()  # the workers are threads; the test kills the process
