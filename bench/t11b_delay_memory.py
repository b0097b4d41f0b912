"""T11b: memory of the delay service's process with 10 million pending: started, then at work.

RssAnon (RssFile beside it) as the kernel counts it, the highest of samples. At work: 10,000 messages due
within two seconds and 200 cancels of any of the millions; all delivered, all cancelled.
"""

from __future__ import annotations

from bench import t10_cancel
from bench.delay_rig import Receiver, Rig, pending, rig
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.t07_delay_lateness import RATE, sent

SECONDS = sized(2.0, 0.2)
REACH = "≤ 300 MiB anonymous"
MIB = 1 << 20


class Memory:
    """The highest seen in one round."""

    def __init__(self, one: Rig) -> None:
        self._rig = one
        self.anonymous = self.file = self.server = 0

    def take_sample(self) -> None:
        """Take a sample."""
        sizes = self._rig.service.memory()
        self.anonymous = max(self.anonymous, sizes["RssAnon"])
        self.file = max(self.file, sizes["RssFile"])
        self.server = max(self.server, self._rig.server.anonymous_bytes())

    def figures(self) -> dict[str, float]:
        waiting = pending(self._rig.service)
        return {
            "rss_anon_mib": self.anonymous / MIB,
            "rss_file_mib": self.file / MIB,
            "bytes_per_pending": self.anonymous / max(waiting, 1),
            "proxies_rss_anon_mib": self.server / MIB,
            "pending": waiting,
        }


def started(one: Rig) -> dict[str, float]:
    """A delay service that has just begun, after the one before was killed."""
    one.service.kill()
    one.restart_service()
    memory = Memory(one)
    memory.take_sample()
    return memory.figures()


def at_work(one: Rig) -> dict[str, float]:
    memory, count = Memory(one), int(RATE * SECONDS)
    topic, due_s = sent(one, "memory", count)
    memory.take_sample()
    receiver = Receiver(one.server, {topic: count})
    receiver.run(due_s + SECONDS)
    memory.take_sample()
    t10_cancel.cancelled(one, 1, sized(200, 20))
    memory.take_sample()
    return memory.figures()


def main() -> None:
    pin(CLIENT_CORE)
    with rig() as one:
        every = [
            Series("started", lambda: started(one), reach=REACH),
            Series("at work", lambda: at_work(one), reach=REACH),
        ]
        run("t11b_delay_memory", __doc__ or "", every, **one.facts)


if __name__ == "__main__":
    main()
