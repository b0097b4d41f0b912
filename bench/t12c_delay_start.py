"""T12c: kill -9 with 10 million pending and messages due: from starting again to the first due message.

A message is due every 5 ms. Just before the first is due the delay service alone is killed, or every process;
what is started again finds messages that are late. Measured from the start of the first process, Python's
own included, to the moment that a waiting client has the first of them. Every message comes, each once.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from bench.delay_rig import Receiver, Rig, pending, rig, start_server
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.t07_delay_lateness import sent

RATE = 200
COUNT = int(RATE * sized(5.0, 2.0))
KILLED_S = 0.1  # before the first is due
REACH = "first due message ≤ 2 s"


def measure(one: Rig, every_process: bool) -> dict[str, float]:
    before = pending(one.service)
    topic, due_s = sent(one, "start", COUNT, RATE)
    time.sleep(max(due_s - KILLED_S - time.time(), 0))
    one.service.kill()
    began, server_s = time.time(), 0.0
    if every_process:
        one.server.kill()
        began = time.time()
        one.server = start_server(one.data)
        server_s = time.time() - began
    receiver = Receiver(one.server, {topic: COUNT})
    starting = threading.Thread(target=one.restart_service)
    starting.start()
    receiver.run(max(due_s + COUNT / RATE, time.time()))
    starting.join()
    if pending(one.service) != before:
        raise AssertionError(f"{before} were pending, {pending(one.service)} are")
    figures = {"first_s": receiver.first_at[topic] - began}
    return figures | {"proxies_ready_s": server_s} if every_process else figures


def main() -> None:
    pin(CLIENT_CORE)
    with rig() as one:
        every = [
            Series("the delay service killed", partial(measure, one, False), reach=REACH),
            Series("every process killed", partial(measure, one, True), reach=REACH),
        ]
        run("t12c_delay_start", __doc__ or "", every, **one.facts)


if __name__ == "__main__":
    main()
