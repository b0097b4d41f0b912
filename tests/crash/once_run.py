"""Sends that are stored once, while the servers that store them are killed with SIGKILL again and again.

    python -m tests.crash.once_run --seed 7 --rounds 100

Two producer proxies and a consumer proxy are processes of their own over one directory; one of them writes,
and another takes over when it is killed. Each round kills one of them, or several, now and then while they
start. Real Producers send all the time, and many senders repeat keys (once_load.py); the rules are in
once_ledger.py. At the end all keys are sent once more, and the topics are read. Prints the seed and the
command that runs the same again; the exit code is 1 when any promise was broken.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddmq_client import Producer
from tests.crash.kit.boundaries import BoundaryServer
from tests.crash.kit.boundary_process import SEND
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.kill_run import COMMANDS, configuration, describe_counts, judged
from tests.crash.kit.load_thread import stopped
from tests.crash.kit.reading import read_on
from tests.crash.kit.server_rounds import ServerRounds
from tests.crash.once_ledger import OnceLedger, StoredAt
from tests.crash.once_load import TOPICS, KeySender, NumberedSender

NUMBERED, KEYED = 4, 3
END_S = 120.0
QUEUES = 4


class OnceRun(ServerRounds):
    """One run."""

    ledger: OnceLedger
    boundary_names = {"producer": (SEND,)}

    def __init__(self, folder: Path, seed: int, print_line: PrintLine) -> None:
        config = configuration(folder / "conf", seed)
        servers = [BoundaryServer(folder, config, command=command) for command in COMMANDS]
        super().__init__(seed, print_line, servers, OnceLedger())
        numbered = [NumberedSender(f"numbered-{n}", seed, self.ledger, self.ports) for n in range(NUMBERED)]
        self.keyed = [KeySender(f"keyed-{n}", seed, self.ledger, self.ports) for n in range(KEYED)]
        self.workers = [*numbered, *self.keyed]

    def prepare(self) -> None:
        for topic, durability in zip(TOPICS, ("sync", "written"), strict=True):
            body = {"create": True, "queues": QUEUES, "durability": durability}
            self.servers[0].admin("POST", "topics", topic, body=body)

    def is_proof(self, rounds: int) -> bool:
        return self.ledger.counts.confirmed > 10 * rounds

    def numbers(self) -> str:
        return describe_counts(self.ledger.counts)

    # --- the end

    def end(self) -> None:
        stopped(self.workers)
        self._all_keys()
        self.ledger.finish(self._stored())

    def _all_keys(self) -> None:
        """Once more, by somebody else: what was stored before is known."""
        keyed, numbers = self.keyed[0], max(sender.newest for sender in self.keyed)
        with Producer(self.addresses(), timeout_ms=int(END_S * 1_000)) as last:
            messages = [keyed.message(number) for number in range(numbers)]
            for message, result in zip(messages, last.send_batch(messages), strict=True):
                self.ledger.key(bytes(message.body))
                keyed.record_result(message, result)

    def _stored(self) -> list[tuple[StoredAt, bytes]]:
        """All that is in the topics."""
        return [
            (StoredAt(queue.topic, queue.number, each.offset, each.message_id or ""), bytes(each.body))
            for queue, each in read_on(self.addresses("consumer"), TOPICS)
        ]


def run(
    folder: Path, seed: int, rounds: int, print_line: PrintLine = print, *, boundaries: bool = False
) -> int:
    """Report what the run sees, and return the number of broken promises."""
    print_line(
        "the same again: " + replay_command("once_run", seed=seed, rounds=rounds, boundaries=boundaries)
    )
    success_text = "0 lost, 0 stored twice, 0 answered for another place"
    return judged(OnceRun(folder, seed, print_line), rounds, success_text, boundaries=boundaries)


def main() -> int:
    return long_run(__doc__, "once-run", run, seed=None, rounds=100, boundaries=False)


if __name__ == "__main__":
    sys.exit(main())
