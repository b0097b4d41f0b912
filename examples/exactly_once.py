"""Turn each payment into two ledger entries exactly once, although the worker is killed again and again.

    ddmq serve --data-dir ./data
    ddmq group set bookkeeping --topic payments --start first --ack-timeout-ms 500
    python examples/exactly_once.py

It kills a worker four times with SIGKILL while it works, and then compares the ledger with the payments.
"""

import subprocess
import sys
import threading
import time
from collections import Counter

from ddmq_client import Consumer, Message, Producer

PAYMENTS = 400


def book_payment(message: Message) -> None:
    """Send both entries and acknowledge the payment in one commit."""
    time.sleep(0.005)  # the work
    with message.replies() as tx:
        tx.send("ledger", f"debit {message.text()}", key=message.key)
        tx.send("ledger", f"credit {message.text()}", key=message.key)


def read_ledger() -> Counter[str]:
    """Count the entries of the ledger until all are there."""
    entries: Counter[str] = Counter()
    complete = threading.Event()

    def count_entry(message: Message) -> None:
        entries[message.text()] += 1
        if entries.total() >= 2 * PAYMENTS:
            complete.set()

    with Consumer("127.0.0.1:9713", "audit", ["ledger"], start="first", handler=count_entry):
        complete.wait(timeout=60)
    return entries


def main() -> None:
    """Send the payments, kill the worker four times, and compare."""
    with Producer("127.0.0.1:9613") as producer:
        for number in range(PAYMENTS):
            producer.send("payments", f"payment {number}", key=str(number))
    for _ in range(4):
        worker = subprocess.Popen([sys.executable, __file__, "worker"])
        time.sleep(1)
        worker.kill()
        worker.wait()
    worker = subprocess.Popen([sys.executable, __file__, "worker"])
    entries = read_ledger()
    worker.terminate()
    worker.wait()
    expected = {f"{side} payment {number}": 1 for number in range(PAYMENTS) for side in ("debit", "credit")}
    if entries != expected:
        raise SystemExit(f"{len(entries)} of {len(expected)} entries, {entries.total()} deliveries")
    print(f"{PAYMENTS} payments, {len(entries)} entries, each exactly once; the worker was killed 4 times")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        Consumer("127.0.0.1:9713", "bookkeeping", ["payments"], handler=book_payment, threads=2).run()
    else:
        main()
