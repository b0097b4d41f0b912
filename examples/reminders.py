"""Send reminders for later, cancel one of them, and repeat one by a cron.

    ddmq serve --data-dir ./data
    python examples/reminders.py

It prints each reminder when it is due, and ends after the last one.
"""

import threading
from datetime import UTC, datetime, timedelta

from ddmq_client import Consumer, DelayStatus, Message, Producer

arrived = threading.Event()


def show_reminder(message: Message) -> None:
    """Print a reminder when it arrives; the last one ends the program."""
    print(f"{datetime.now(UTC):%H:%M:%S} {message.text()}", flush=True)
    if message.text() == "tea is ready":
        arrived.set()


with (
    Producer("127.0.0.1:9613") as producer,
    Consumer("127.0.0.1:9713", "phone", ["reminders"], start="first", handler=show_reminder),
):
    producer.send("reminders", "tea is ready", delay=timedelta(seconds=2))
    at_a_time = datetime.now(UTC) + timedelta(seconds=1)
    producer.send("reminders", "put the kettle on", deliver_at=at_a_time)

    coffee = producer.send("reminders", "coffee is ready", delay=timedelta(seconds=30))
    outcome = producer.cancel(coffee)
    if outcome.status is DelayStatus.CANCELLED:
        print("coffee: cancelled, it will not be delivered")

    stand_up = producer.send("reminders", "stand-up", cron="0 9 * * 1-5", zone="Asia/Shanghai")
    print("stand-up: next at", stand_up.due_at)
    producer.cancel(stand_up)  # a cron repeats until it is cancelled

    if not arrived.wait(timeout=60):
        raise SystemExit("the tea did not come within a minute")
