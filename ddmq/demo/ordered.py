"""Act two: the files as messages with an order key, a module that fails on purpose, its dead letters.

The key is the module. Files of one module are sent one after the other and lie in different queues; four
consumers take them at once. What is proven, by counting (ModuleOrder): within a module one file at a
time, in the order of sending; a module that fails blocks only itself; what dies is in the dead letters;
sent again it arrives; in the end every file that was acknowledged is finished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient
from ddmq.demo import library
from ddmq.demo.library import GIVE_UP_S, FileMessage, LibraryFile, Sent, send_all
from ddmq.demo.reported import ClientCounts
from ddmq.demo.server import Narrator, Typed
from ddmq_client import Consumer, Message
from metrics_job.report.core.order import KeyEvent, KeyMark

TOPIC = "modules"
GROUP = "modules"
CONSUMERS = 4
THREADS = 4  # of each consumer
BROKEN = "json"
DELIVERIES_MAX = 3
SETTINGS = (
    "--order-key KEY --start first --retry-intervals-ms 200 --ordered-interval-ms 1000 "
    f"--ordered-deliveries-max {DELIVERIES_MAX}"
)
POLL_INTERVAL_S = 0.02
Life = tuple[str, int]  # module, round


class OrderedAct:
    """The second act of the demo, over a running server: messages are consumed in the order of their keys.

    `queue_of_key`: each module goes to one queue, as Kafka requires; the file log keeps the order of a key
    over all queues.
    """

    def __init__(
        self,
        addresses: Mapping[str, HostPort],
        files: list[LibraryFile],
        typed: Typed,
        narrator: Narrator,
        *,
        queue_of_key: bool = False,
    ) -> None:
        self._addresses = addresses
        self._queue_of_key = queue_of_key
        self._admin = AdminClient(addresses["admin"])
        self._modules = by_module(files)
        self._files = len(files)
        self._typed = typed
        self._narrator = narrator
        self._sent = Sent()
        self._order = ModuleOrder(DELIVERIES_MAX)
        self._damaged: list[str] = []
        self._died = 0
        self._during = 0  # finished while the broken module was blocked
        self._endings: list[tuple[int, str, bool]] = []  # (wall clock in ms, module, failed)
        self._mended = threading.Event()

    def run(self) -> bool:
        """Run the act. Returns True if everything was proven."""
        self._typed(f"topic create {TOPIC}")
        self._typed(f"group set {GROUP} --topic {TOPIC} {SETTINGS}")
        self._send()
        consumer = str(self._addresses["consumer"])
        start = time.monotonic()
        with ExitStack() as stack:
            for _ in range(CONSUMERS):
                stack.enter_context(Consumer(consumer, GROUP, [TOPIC], handler=self._handle, threads=THREADS))
            self._narrator.print_step(
                f"{CONSUMERS} consumers take them; the one for {BROKEN!r} fails on purpose"
            )
            self._show_blocked()
            self._wait_for_letters()
            self._resend()
        return self._check_order(time.monotonic() - start)

    def _send(self) -> None:
        runs = [
            [
                FileMessage(TOPIC, file, number, file.module if self._queue_of_key else None)
                for number, file in enumerate(files)
            ]
            for files in self._modules.values()
        ]
        seconds = send_all(str(self._addresses["producer"]), runs, self._sent)
        self._narrator.print_step(
            f"sent {len(self._sent.acknowledged):,} files of {len(self._modules):,} modules "
            f"in {seconds:.1f} s, each numbered within its module, those of {BROKEN!r} first"
        )

    def _handle(self, message: Message) -> None:
        module, number = str(message.key), int(message.properties["number"])
        round_ = int(message.properties.get("dead-letter-resent", "0"))
        self._order.begin(module, number, round_)
        broken = module == BROKEN and not self._mended.is_set()
        if library.checksum(message.body) != message.properties["sha256"]:
            self._damaged.append(message.properties["path"])
        self._order.end(module, number, round_, failed=broken)
        self._endings.append((time.time_ns() // 1_000_000, module, broken))
        if broken:
            message.fail(reason=f"the demo's consumer of {BROKEN} is broken on purpose")

    # --- steps

    def _show_blocked(self) -> None:
        wait_for(lambda: any(key["attempts"] >= 2 for key in self._blocked_keys()), f"{BROKEN} blocked")
        self._narrator.print_step(
            f"{BROKEN!r} is stuck: {self._order.finished_of(BROKEN)} of its {self._broken_count} files "
            f"are finished; meanwhile {self._order.finished_but(BROKEN):,} files of the other modules are"
        )
        self._typed(f"group keys {GROUP}")

    def _wait_for_letters(self) -> None:
        self._narrator.print_short(f"key {BROKEN!r} is blocked: its first file fails again and again …")
        wait_for(lambda: self._count_letters() == self._broken_count, f"{self._broken_count} dead letters")
        self._died, self._during = self._count_letters(), self._order.finished_but(BROKEN)
        self._narrator.print_step(
            f"each file of {BROKEN!r} failed {DELIVERIES_MAX} times and is a dead letter; until then "
            f"{self._during:,} of {self._files - self._broken_count:,} files of the others were finished"
        )
        self._typed("dlq list")
        self._typed(f"dlq show {GROUP}")

    def _resend(self) -> None:
        self._mended.set()
        self._narrator.print_step(
            f"the consumer of {BROKEN!r} is mended; its dead letters are sent to {GROUP} again"
        )
        self._typed(f"dlq resend {GROUP} --all")
        wait_for(lambda: self._count_finished() == self._files, f"{self._files} finished files")
        wait_for(lambda: self._read_lag() == 0, "a lag of 0")
        self._typed(f"group keys {GROUP}")
        self._typed(f"lag {GROUP}")

    def _check_order(self, seconds: float) -> bool:
        order, sent, finished = self._order, self._sent, self._count_finished()
        self._narrator.print_facts(
            {
                "acknowledged": f"{len(sent.acknowledged):,} of {self._files:,} files of "
                f"{len(self._modules):,} modules",
                "deliveries": f"{order.deliveries:,} = {finished:,} files finished + "
                f"{order.failures:,} failed on purpose + {order.duplicates:,} that came twice",
                "side by side": f"up to {order.at_once_max} modules at once, {seconds:.1f} s in all",
                "out of order": f"{order.overtaken:,} came before their turn, {order.went_back:,} went back",
                "not alone": f"{order.together:,} began while another file of their module was in work",
                "blocked": f"{self._during:,} files of others finished before {BROKEN!r} went on",
                "dead letters": f"{self._died:,} died, {order.revived:,} arrived when sent again, "
                f"{self._count_letters():,} wait now",
                "damaged": f"{len(self._damaged):,}",
                "lost": f"{self._files - finished:,}",
            }
        )
        proven = self._adds_up() and order.overtaken == order.together == 0
        self._narrator.print_step(
            "sent = acknowledged = finished, each module in order" if proven else "NOT PROVEN: see above"
        )
        return proven

    def _adds_up(self) -> bool:
        order, finished = self._order, self._count_finished()
        return (
            len(self._sent.acknowledged) == finished == self._files
            and order.deliveries == finished + order.failures + order.duplicates
            and max(order.duplicates, order.went_back) <= self._sent.resends
            and order.failures == self._broken_count * DELIVERIES_MAX
            and self._died == order.revived == self._broken_count
            and self._count_letters() == len(self._damaged) == 0
            and self._during > 0
        )

    def client_counts(self) -> ClientCounts:
        """Return the counts of this act's clients, with which the report of the run is compared."""
        order, sent = self._order, self._sent
        return ClientCounts(
            TOPIC, len(sent.acknowledged), sent.resends, sent.answered_ms,
            delivered=order.deliveries, finished=order.deliveries - order.failures, failed=order.failures,
            dead=self._died,
        )  # fmt: skip

    def list_events(self) -> Iterator[KeyEvent]:
        """Yield the events of each module for the picture of order."""
        yield from (KeyEvent(at_ms, module, KeyMark.STORED) for at_ms, module in self._sent.answered)
        for at_ms, module, failed in self._endings:
            yield KeyEvent(at_ms, module, KeyMark.FAILED if failed else KeyMark.FINISHED)

    def build_verdicts(self) -> list[tuple[bool, str]]:
        """Return the sentences of the summary for a newcomer, each with whether it was proven."""
        order, out_of_order = self._order, self._order.overtaken + self._order.together
        others = self._files - self._broken_count
        went_on = (
            f"{BROKEN!r} was blocked, the other keys went on: {self._during:,} of their {others:,} files"
        )
        return [
            (
                out_of_order == 0,
                f"order kept: {out_of_order:,} of {order.deliveries:,} deliveries out of order",
            ),
            (self._during > 0, f"{went_on} were finished meanwhile"),
            (
                self._died == order.revived == self._broken_count and self._adds_up(),
                f"{self._died:,} files of {BROKEN!r} became dead letters and were sent again; "
                f"{order.revived:,} arrived",
            ),
        ]

    # --- what the server says

    def _blocked_keys(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = self._admin.get("groups", GROUP, "keys")
        return [key for key in keys if key["key"] == f'"{BROKEN}"']

    def _count_letters(self) -> int:
        return sum(int(row["letters"]) for row in self._admin.get("dlq") if row["group"] == GROUP)

    def _read_lag(self) -> int:
        return sum(int(row["lag"]) for row in self._admin.get("lag", group=GROUP))

    def _count_finished(self) -> int:
        return self._order.finished_of(BROKEN) + self._order.finished_but(BROKEN)

    @property
    def _broken_count(self) -> int:
        return len(self._modules[BROKEN])


def by_module(files: list[LibraryFile]) -> dict[str, list[LibraryFile]]:
    """Return the files of each module in order; the broken module first, then the largest ones."""
    modules: dict[str, list[LibraryFile]] = {}
    for file in files:
        modules.setdefault(file.module, []).append(file)
    names = sorted(modules, key=lambda name: (name != BROKEN, -len(modules[name]), name))
    return {name: modules[name] for name in names}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until the condition is true. Raises ClickException after GIVE_UP_S."""
    deadline = time.monotonic() + GIVE_UP_S
    while not condition():
        if time.monotonic() > deadline:
            raise click.ClickException(f"in {GIVE_UP_S:g} s not seen: {what}")
        time.sleep(POLL_INTERVAL_S)


@dataclass
class ModuleOrder:
    """Checks that the handlers receive the files of each module in order.

    Handlers call `begin` and `end` from their threads.

    Every file carries its number within its module, from 0. A *round* is one life of the messages: 0 as they
    were sent, 1 after they were sent again as dead letters. Within a module and round the first delivery of
    number n may begin only when n - 1 is settled: finished, or delivered and failed for the last time, after
    `deliveries_max` deliveries. Everything is counted, nothing is assumed:

      overtaken   a first delivery came too early: a number was left out, or the one before was not settled
      together    a delivery began while another file of the same module was in somebody's hands
      went_back   a delivery of a lower number came after a higher one had begun
      duplicates  a file was finished that had been finished before
      revived     files that were finished in a later round
    """

    deliveries_max: int
    deliveries: int = 0
    failures: int = 0
    overtaken: int = 0
    together: int = 0
    went_back: int = 0
    duplicates: int = 0
    revived: int = 0
    at_once_max: int = 0  # modules in hands at the same time
    in_hands: set[str] = field(default_factory=set)
    finished: dict[str, set[int]] = field(default_factory=dict)  # by module, over all rounds
    _last: dict[Life, int] = field(default_factory=dict)
    _failed: dict[Life, int] = field(default_factory=dict)  # how often the last one failed
    _settled: dict[Life, bool] = field(default_factory=dict)  # whether the last one is
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, module: str, number: int, round_: int = 0) -> None:
        """Record that a handler begins to process a file."""
        with self._lock:
            self.deliveries += 1
            self.together += module in self.in_hands
            self.in_hands.add(module)
            self.at_once_max = max(self.at_once_max, len(self.in_hands))
            self._begin_delivery((module, round_), number)

    def _begin_delivery(self, life: Life, number: int) -> None:
        last = self._last.get(life, -1)
        self.went_back += number < last
        if number > last:
            self.overtaken += number != last + 1 or not self._settled.get(life, True)
            self._last[life] = number
            self._failed[life] = 0
            self._settled[life] = False

    def end(self, module: str, number: int, round_: int = 0, *, failed: bool = False) -> None:
        """Record that a handler has finished a file or, with `failed`, failed it."""
        life = (module, round_)
        with self._lock:
            self.in_hands.discard(module)
            if failed:
                self.failures += 1
                self._failed[life] = self._failed.get(life, 0) + 1
            else:
                self._finish_delivery(life, number)
            if number == self._last.get(life):
                self._settled[life] = not failed or self._failed[life] >= self.deliveries_max

    def _finish_delivery(self, life: Life, number: int) -> None:
        finished = self.finished.setdefault(life[0], set())
        is_duplicate = number in finished
        self.duplicates += is_duplicate
        self.revived += life[1] > 0 and not is_duplicate
        finished.add(number)

    def finished_of(self, module: str) -> int:
        """Count the finished files of one module."""
        with self._lock:
            return len(self.finished.get(module, ()))

    def finished_but(self, module: str) -> int:
        """Count the finished files of all other modules."""
        with self._lock:
            return sum(len(numbers) for name, numbers in self.finished.items() if name != module)
