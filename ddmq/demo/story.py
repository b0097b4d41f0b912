"""`ddmq demo`: the main job, told in two acts. Every number that is shown was counted.

Act one: send, kill -9, start again, consume with four clients. What is proven: every file that was
acknowledged came out with the same bytes; a file whose answer was lost in the kill is sent again, so it may
come twice, which is counted and shown. Act two is ordered.py. The commands of both are run as they are shown.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Group

from ddmq.cli.output import console, print_verdict, reason, show
from ddmq.cli.values import Folder, OutputFile
from ddmq.demo import library
from ddmq.demo.library import GIVE_UP_S, FileMessage, LibraryFile, Sent, send_all
from ddmq.demo.ordered import OrderedAct
from ddmq.demo.reported import ClientCounts
from ddmq.demo.server import SIDE_FILES, DemoServer, Narrator, Typed, side_path
from ddmq.trial.cluster import Ports, TrialCluster, free_ports
from ddmq_client import Consumer, Message
from metrics_job.report.core.order import KeyEvent, KeyMark, OrderPhase, OrderPicture, Outage, draw_order
from metrics_job.report.terminal import order_lines

TOPIC = "library"
GROUP = "demo"
PICTURE_WIDTH = 100  # columns, where the terminal has them
CONSUMERS = 4
BROKERS, KILLED = 3, 2


@click.command()
@click.option(
    "--data-dir",
    type=Folder(path_type=Path),
    help="Keep the data in this folder, which is new or empty (default: a temporary one).",
)
@click.option(
    "--report",
    "report_file",
    default="ddmq-demo-report.html",
    show_default=True,
    type=OutputFile(),
    help="Where the report of the run is written.",
)
@click.option(
    "--kafka", is_flag=True, help="Run on a Kafka cluster of three brokers, one of which is killed, too."
)
@click.option("--verbose", is_flag=True, help="Show every step, command and number.")
def demo(data_dir: Path | None, report_file: Path, kafka: bool, verbose: bool) -> None:
    """Show that a killed server loses no message and keeps the order.

    Takes about 15 s on two free cores, and a minute or two with the report of the run, which needs Spark; a
    busy machine takes several times as long.

    The messages are the files of Python's standard library; the key of each is its module. First they are
    sent while the server is killed with kill -9, and all of them must arrive. Then they are consumed in order
    by key while one key fails on purpose: the others must go on, and its dead letters must arrive when they
    are sent again. A picture shows the keys over time.

    With --verbose what is shown behind $ can be typed as it stands. With Spark the run ends with a report,
    whose numbers must be those that the demo counted. Exit code 1 when something was not proven.
    """
    narrator = Narrator(verbose=verbose)
    _require_report_folder(report_file)
    if data_dir is not None:
        data_dir = data_dir.resolve()
        _require_empty_folder(data_dir)
        _run_demo(data_dir, report_file, kafka, narrator)
        return
    with tempfile.TemporaryDirectory(prefix="ddmq-demo-") as folder:
        _run_demo(Path(folder) / "data", report_file, kafka, narrator)


def _require_report_folder(report_file: Path) -> None:
    """Raise ClickException before the demo starts if its report could not be written at its end."""
    folder = report_file.absolute().parent
    if not folder.is_dir():
        raise click.ClickException(
            f"--report {report_file}: the folder {folder} does not exist; create it first"
        )
    if not os.access(report_file if report_file.exists() else folder, os.W_OK):
        raise click.ClickException(f"--report {report_file}: cannot be written; choose another file")


def _require_empty_folder(data_dir: Path) -> None:
    """Create the folder. Raises ClickException if it cannot be created or written, if it holds anything, or
    if files of the demo's names lie beside it: the demo never touches data that it did not write."""
    advice = "name a folder that is new or empty"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        first = next(data_dir.iterdir(), None)
    except FileExistsError:
        raise click.ClickException(f"--data-dir {data_dir}: is a file; {advice}") from None
    except OSError as error:
        raise click.ClickException(f"--data-dir {data_dir}: {reason(error)}; {advice}") from None
    if first is not None:
        raise click.ClickException(
            f"--data-dir {data_dir}: is not empty ({first.name} is in it), and the demo starts with an empty "
            f"server; {advice}"
        )
    for path in (side_path(data_dir, suffix) for suffix in SIDE_FILES):
        if path.exists():
            raise click.ClickException(f"--data-dir {data_dir}: the demo would overwrite {path}; {advice}")
    if not os.access(data_dir.parent, os.W_OK):
        raise click.ClickException(
            f"--data-dir {data_dir}: the demo's log is written beside it, and {data_dir.parent} cannot be "
            "written; choose another folder"
        )


def _run_demo(data_dir: Path, report_file: Path, kafka: bool, narrator: Narrator) -> None:
    from ddmq.demo.reported import report_of_the_run

    brokers = _start_brokers(side_path(data_dir, "kafka"), narrator) if kafka else nullcontext()
    with brokers as cluster:
        server = DemoServer(data_dir, cluster)
        story = Story(server, narrator)
        try:
            proven = story.run()
            server.wait_for_samples()
        finally:
            server.stop()
    picture = story.draw_picture()
    if picture is not None:
        show(Group("", *order_lines(picture, min(console().width, PICTURE_WIDTH)), ""))
    for is_proven, text in story.verdicts:
        print_verdict(is_proven, text)
    same = report_of_the_run(data_dir, report_file, story.counted, story.killed_ms, picture, narrator)
    if not (proven and same):
        print_verdict(False, "NOT PROVEN: see the lines with ✗ above; --verbose shows more")
        raise click.exceptions.Exit(1)
    how = "every number was counted" if narrator.verbose else "--verbose shows every command and number"
    print_verdict(True, f"all proven; {how}")


@contextmanager
def _start_brokers(folder: Path, narrator: Narrator) -> Iterator[TrialCluster]:
    """Run three brokers on free ports while the demo runs."""
    cluster = TrialCluster(folder)
    if not cluster.brokers:
        cluster.make([Ports(*free_ports(2)) for _ in range(BROKERS)])
    narrator.print_short(f"starting {BROKERS} Kafka brokers …")
    narrator.print_step(f"starting {BROKERS} Kafka brokers; the first time Kafka is brought, too")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@dataclass
class Received:
    """The messages that the consumers received, guarded by `lock`."""

    intact: dict[str, int] = field(default_factory=dict)  # path → deliveries
    damaged: list[str] = field(default_factory=list)
    by_consumer: dict[int, int] = field(default_factory=dict)
    arrived: list[tuple[int, str]] = field(default_factory=list)  # (wall clock in ms, module)
    lock: threading.Lock = field(default_factory=threading.Lock)


def consume_all(address: str, checksums: dict[str, str], received: Received) -> float:
    """Consume with CONSUMERS clients until every path in `checksums` was received; return the seconds that it
    took."""
    start = time.monotonic()
    complete = threading.Event()

    def handler_of(number: int) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            check(message, number, received)
            if len(received.intact) >= len(checksums):
                complete.set()

        return handle

    consumers = [
        Consumer(address, GROUP, [TOPIC], handler=handler_of(n), threads=1) for n in range(CONSUMERS)
    ]
    for consumer in consumers:
        consumer.start()
    complete.wait(GIVE_UP_S)
    seconds = time.monotonic() - start
    for consumer in consumers:
        consumer.stop()
    return seconds


def check(message: Message, number: int, received: Received) -> None:
    """Compare the body of a message with the checksum in its properties, and count it in `received`."""
    path = message.properties["path"]
    intact = library.checksum(message.body) == message.properties["sha256"]
    with received.lock:
        received.by_consumer[number] = received.by_consumer.get(number, 0) + 1
        if intact:
            received.intact[path] = received.intact.get(path, 0) + 1
            received.arrived.append((time.time_ns() // 1_000_000, str(message.key)))
        else:
            received.damaged.append(path)


class Story:
    """The steps of the demo, and its output."""

    def __init__(self, server: DemoServer, narrator: Narrator) -> None:
        self.server = server
        self.verdicts: list[tuple[bool, str]] = []  # whether it was proven, and what
        self._narrator = narrator
        self._events: list[KeyEvent] = []
        self._outages: list[Outage] = []
        self._phases: list[OrderPhase] = []
        self.sent = Sent()
        self.received = Received()
        self._typed = Typed(narrator)
        self._killed = threading.Event()
        self._restart_s = 0.0
        self.killed_ms = 0  # wall clock, when the killed server was up again
        self.counted: list[ClientCounts] = []  # by act, what the report of the run is compared with

    def run(self) -> bool:
        """Run both acts. Returns True if everything was proven."""
        fit, rest = library.list_files()
        self._narrator.print_step(f"starting a server over {self.server.data_dir}")
        self._narrator.print_step(
            f"ready after {self.server.start():.2f} s; what is shown behind $ can be typed while it runs"
        )
        self._typed.use_server(self.server.addresses)
        self._narrator.print_step("ACT ONE: nothing acknowledged is lost")
        if rest:
            self._narrator.print_step(f"left out: {len(rest)} files that are empty or over 2 MiB")
        self._phases.append(OrderPhase(time.time_ns() // 1_000_000, "1 send"))
        stored = self._first_act(fit)
        if self.server.cluster is not None:
            self.server.cluster.start([KILLED])
        self._narrator.print_step("ACT TWO: every module in order, while one of them fails")
        kafka = self.server.cluster is not None
        act = OrderedAct(self.server.addresses, fit, self._typed, self._narrator, queue_of_key=kafka)
        self._narrator.print_short("consuming them again, in order by key, while one key fails on purpose")
        self._phases.append(OrderPhase(time.time_ns() // 1_000_000, "2 order by key"))
        ordered = act.run()
        self._events += act.list_events()
        self.verdicts += act.build_verdicts()
        self.counted = [self._first_act_counts(), act.client_counts()]
        return ordered and stored

    def _first_act_counts(self) -> ClientCounts:
        sent, deliveries = self.sent, sum(self.received.by_consumer.values())
        return ClientCounts(
            TOPIC, len(sent.acknowledged), sent.resends, sent.answered_ms, deliveries, deliveries, 0, 0
        )

    def _first_act(self, files: list[LibraryFile]) -> bool:
        self._typed(f"topic create {TOPIC}")
        self._typed(f"group create {GROUP} --topic {TOPIC} --start first")
        keys = len({file.module for file in files})
        self._narrator.print_short(
            f"sending {len(files):,} files of Python's library, {keys:,} keys; kill -9 of the server halfway"
        )
        self._narrator.print_step(
            f"sending {len(files):,} files of {library.library_root()} (key = module, property = path)"
        )
        send_s = self._send(files)
        self._narrator.print_step(f"consuming with {CONSUMERS} clients as group {GROUP!r}")
        self._narrator.print_short("consuming them")
        consumer = str(self.server.addresses["consumer"])
        consume_s = consume_all(consumer, self.sent.acknowledged, self.received)
        self._typed(f"lag {GROUP}")
        return self._check_delivery(len(files), send_s, consume_s)

    def _send(self, files: list[LibraryFile]) -> float:
        half = len(files) // 2

        def when_at(count: int) -> None:
            if count >= half and not self._killed.is_set():
                with self.sent.lock:
                    first = not self._killed.is_set()
                    self._killed.set()
                if first:
                    self._kill_and_restart(count)

        runs = ([FileMessage(TOPIC, file, 0)] for file in files)
        return send_all(str(self.server.addresses["producer"]), runs, self.sent, when_at)

    def draw_picture(self) -> OrderPicture | None:
        """Draw the order of the keys over the time of both acts; None without events."""
        return draw_order(self._events, self._outages, self._phases)

    def _kill_and_restart(self, count: int) -> None:
        self._narrator.print_step(
            f"kill -9 after {count:,} acknowledged files, while the others are on their way"
        )
        if self.server.cluster is not None:
            self._narrator.print_step(
                f"kill -9 of broker {KILLED}, too; it stays dead until the end of this act"
            )
            self.server.cluster.signal(KILLED, signal.SIGKILL)
        began_ms = time.time_ns() // 1_000_000
        self.server.kill()
        self._restart_s = self.server.start()
        self.killed_ms = time.time_ns() // 1_000_000
        self._outages.append(Outage(began_ms, self.killed_ms))
        self.verdicts.append(
            (
                True,
                f"the server was killed with kill -9 after {count:,} files; it was back in "
                f"{self._restart_s:.1f} s",
            )
        )
        self._narrator.print_step(f"started again, ready after {self._restart_s:.2f} s")

    def _check_delivery(self, files: int, send_s: float, consume_s: float) -> bool:
        sent, received = self.sent, self.received
        missing = sorted(set(sent.acknowledged) - set(received.intact))
        twice = sum(count > 1 for count in received.intact.values())
        shares = ", ".join(f"{received.by_consumer.get(n, 0):,}" for n in range(CONSUMERS))
        latency = sorted(sent.latencies_ms)
        p50, p99 = (latency[int(len(latency) * share)] for share in (0.5, 0.99))
        self._narrator.print_facts(
            {
                "acknowledged": f"{len(sent.acknowledged):,} of {files:,} files, "
                f"{sent.body_bytes / 1e6:,.1f} MB",
                "send rate": f"{files / send_s:,.0f} files/s, kill and restart included "
                f"({self._restart_s:.2f} s)",
                "send latency": f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, each answered after fsync",
                "sent again": f"{sent.resends:,} sends whose answer was lost in the kill",
                "delivered": f"{sum(received.by_consumer.values()):,} (to the four clients: {shares})",
                "consume rate": f"{len(received.intact) / consume_s:,.0f} files/s, checksums included",
                "arrived twice": f"{twice:,} (may be: sent again after an answer was lost)",
                "damaged": f"{len(received.damaged):,}",
                "lost": f"{len(missing):,}",
            }
        )
        for path in missing[:10]:
            click.echo(f"  lost: {path}", err=True)
        self._events += [KeyEvent(at_ms, module, KeyMark.STORED) for at_ms, module in sent.answered]
        self._events += [KeyEvent(at_ms, module, KeyMark.FINISHED) for at_ms, module in received.arrived]
        proven = not missing and not received.damaged and len(sent.acknowledged) == files
        self._narrator.print_step(
            "every acknowledged file arrived intact" if proven else "NOT PROVEN: see above"
        )
        text = f"{len(received.intact):,} of {files:,} files arrived intact"
        self.verdicts.append(
            (proven, f"nothing was lost: {text}" if not missing else f"{len(missing):,} lost; {text}")
        )
        return proven
