"""One run on Kafka under faults: brokers, three `ddmq serve`, the load, and what is checked when all is over.

kafka_rounds.py kills and stops processes, kafka_partitions.py cuts the network between them: each says what
a round is. Beside their faults a topic has no leader all the time: the spare broker, which has it alone, is
killed before the first round and started after the last one. In the end everything that is stored is read as
any consumer of Kafka would, and judged together with what clients saw (load.py).
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, KafkaError, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from backend.kafka.options import Names
from ddmq_client import Consumer
from ddmq_common.errors import ConfigError
from tests.crash.kafka.bare import BareClients
from tests.crash.kafka.cluster import ClusterWithSpareBroker
from tests.crash.kafka.load import (
    GROUPS,
    HEALTHY,
    INNER,
    QUEUES,
    RETRIED,
    SPARE,
    TOPICS,
    Account,
    Sender,
    Stored,
    consumer,
)
from tests.crash.kit.command import PrintLine
from tests.scenarios.real_server import NotReady, RealServer, write_config
from tests.support.waits import until

SERVERS = 3
SENDERS = 2  # of each topic
STORE_ONCE = ("keys", "all", "none")
PAUSE_MAX_S = 2.0  # of a healthy topic, longer than Kafka's own clients, when the spare broker is lost
WATCHED_S = 20.0  # after the loss, in which messages of its topic fall due
LAST_S = 6.0  # of load, after the last fault
DRAIN_S = 240.0
READ_S = 30.0
READY_S = 600.0  # of brokers, on a busy machine
STEADY_S = 10.0  # more than the longest delay, and its repeats: what was of unknown outcome has come by then
SHOWN = 40
STEP = "ddmq-s-RECONSUME_TIME"
FOREVER = {"max_timeout_redeliveries": -1, "ack_timeout_ms": 5_000, "start": "first"}
SETTINGS = {
    "any": {**FOREVER, "retry_intervals_ms": [100, -1]},
    "in-order": {**FOREVER, "order_key": "KEY", "order_scope": "topic", "ordered_deliveries_max": -1},
    RETRIED: {**FOREVER, "retry_intervals_ms": [50], "retry_steps": 3},
    SPARE: {**FOREVER, "retry_intervals_ms": [100, -1]},
}
LEVELS = ["100ms", "200ms", "500ms", "1s", "2s"]  # the retry path begins at the third


def post(server: RealServer, target: str, body: dict[str, object]) -> None:
    """Until it is taken: a cluster that has just begun may ask for it again, and then has it already."""
    answers: list[object] = []

    def is_accepted() -> bool:
        status, answer = server.request("POST", target, body)
        answers.append(answer)
        return status == 200 or (len(answers) > 1 and "exists" in str(answer))

    until(is_accepted, lambda: f"{target}: {answers[-1]}")


class KafkaRun:
    """One run. `round` of whoever derives from it does something bad, undoes it, and says what it was."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        cluster: ClusterWithSpareBroker,
        store_once: str,
        print_line: PrintLine,
    ) -> None:
        self.random = Random(f"{seed}/faults")
        self.seed, self.print_line, self.cluster = seed, print_line, cluster
        self.store_once = store_once
        kafka = {"bootstrap": cluster.bootstrap}
        if store_once:  # an earlier build has no such key
            kafka["store_once"] = store_once
        backend = {"engine": "kafka", "kafka": kafka}
        self.config = {"backend": backend, "ddmq": {"log_level": "info"}, "delay_service": {"levels": LEVELS}}
        self.servers = [self.server(folder, number) for number in range(SERVERS)]
        self.account = Account()
        self.bare = BareClients(cluster.bootstrap, QUEUES)
        self.done: Counter[str] = Counter()
        self.times: list[tuple[str, int]] = []  # what happened, when (epoch ms)
        self.load_end_ms = 1 << 62  # when the senders were stopped

    def server(self, folder: Path, number: int) -> RealServer:
        """The processes of ours."""
        return RealServer(folder / f"server-{number}", write_config(folder / f"conf-{number}", **self.config))

    def address(self, server: RealServer, component: str) -> str:
        """Where clients find it."""
        return f"{server.host}:{server.ports[component]}"

    def load_s(self) -> float:
        """How long there is load before the next fault."""
        raise NotImplementedError

    def round(self) -> str:
        """One round's fault, from its beginning to its end."""
        raise NotImplementedError

    # --- the run

    def run(self, rounds: int) -> list[str]:
        """What was broken."""
        try:
            self.cluster.start(list(self.cluster.voters), READY_S)
            for server in self.servers:
                server.start()
            for topic in HEALTHY:
                post(self.servers[0], f"/topics/{topic}", {"create": True, "queues": QUEUES})
            self.bare.start()
            for group in GROUPS.keys() - {SPARE}:
                self._subscribe(group)
            return self._under_load(rounds)
        finally:
            self.end()

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.bare.close()
        for server in self.servers:
            server.kill()
        for number in self.cluster.brokers:
            self.cluster.signal(number, signal.SIGKILL)

    def _subscribe(self, group: str) -> None:
        post(self.servers[0], f"/groups/{group}", {"topics": GROUPS[group], **SETTINGS[group]})

    def _addresses(self, component: str) -> str:
        return ",".join(self.address(server, component) for server in self.servers)

    def _started(self, topics: Sequence[str], groups: Sequence[str]) -> tuple[list[Sender], list[Consumer]]:
        """Senders of topics and consumers of groups, at work."""
        producers, consumers = self._addresses("producer"), self._addresses("consumer")
        keyed = self.store_once not in ("", "none")
        senders = [
            Sender(f"{t}-{n}", t, self.seed, producers, self.account, keyed)
            for t in topics
            for n in range(SENDERS)
        ]
        clients = [
            consumer(group, n, self.seed, consumers, self.account) for group in groups for n in range(2)
        ]
        loads: list[Any] = [*senders, *clients]
        with self.account.pulls.installed():
            for each in loads:
                each.start()
        return senders, clients

    def _lose_spare_broker(self) -> tuple[list[Sender], list[Consumer]]:
        """Kill the only broker of a topic in use; the other topics go on. Returns the load of that topic."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        placed_first = {*map(Names().to_kafka, INNER), "__consumer_offsets"}
        until(
            lambda: placed_first <= admin.list_topics(timeout=READ_S).topics.keys(),
            "all inner topics are there, so none of them will be on the spare broker",
            READY_S,
        )
        self.cluster.start([self.cluster.spare], READY_S)
        config = {"message.timestamp.type": "LogAppendTime"}
        alone = [[self.cluster.spare]] * QUEUES
        [created] = admin.create_topics(
            [NewTopic(SPARE, QUEUES, replica_assignment=alone, config=config)]
        ).values()
        created.result()
        until(lambda: self.servers[0].request("GET", f"/topics/{SPARE}")[0] == 200, seconds=READY_S)
        self._subscribe(SPARE)
        load = self._started([SPARE], [SPARE])
        until(
            lambda: self.account.acknowledged_at_ms[SPARE] and any(self.account.delivered(SPARE)),
            "the topic is in use",
            READY_S,
        )
        self._watch_pauses("with the spare broker")
        self.cluster.signal(self.cluster.spare, signal.SIGKILL)
        self.happens("the spare broker is lost")
        pause_s, what, floor_s = self._watch_pauses("without the spare broker")
        if pause_s > floor_s + PAUSE_MAX_S:
            self.account.violations.append(
                f"STALLED: {what} paused for {pause_s:.1f} s, and Kafka's own clients for {floor_s:.1f} s"
            )
        return load

    def _watch_pauses(self, when: str) -> tuple[float, str, float]:
        """Return the longest pause of a healthy topic in the next WATCHED_S, what paused, and for how long
        Kafka's own clients paused meanwhile."""
        since_ms = time.time_ns() // 1_000_000
        time.sleep(WATCHED_S)  # load without another fault
        pauses = self._longest_pauses(since_ms, time.time_ns() // 1_000_000)
        self.print_line(f"{when}: {_format_pauses(*pauses)}")
        return pauses

    def _longest_pauses(self, since_ms: int, until_ms: int) -> tuple[float, str, float]:
        pause_s, what = self.account.longest_pause_s(since_ms, until_ms)
        return pause_s, what, self.bare.longest_pause_s(since_ms, until_ms)

    def _under_load(self, rounds: int) -> list[str]:
        senders, clients = self._started(HEALTHY, [group for group in GROUPS if group != SPARE])
        more_senders, more_clients = self._lose_spare_broker()
        senders, clients = senders + more_senders, clients + more_clients
        self._run_rounds(rounds)
        time.sleep(LAST_S)  # load after the last fault
        self._check_servers()
        self.load_end_ms = time.time_ns() // 1_000_000
        self._stop(senders)
        self.cluster.start([self.cluster.spare], READY_S)
        stored = self._drained()
        for client in clients:
            client.stop()
        return self.account.judge(stored)

    def _run_rounds(self, rounds: int) -> None:
        """Run the rounds. Ctrl-C ends them; what was seen until then is judged."""
        is_over = threading.Event()
        before = signal.signal(signal.SIGINT, lambda *_: is_over.set())
        try:
            for number in range(1, rounds + 1):
                if is_over.wait(self.load_s()):  # load without a fault: its length is the seed's
                    break
                self._check_servers()
                self.print_line(f"round {number}: {self.round()}")
        finally:
            signal.signal(signal.SIGINT, before)

    def _stop(self, senders: Sequence[Sender]) -> None:
        for sender in senders:
            sender.over.set()
        for sender in senders:
            sender.join(60)
            if sender.failure is not None:
                raise sender.failure

    def _check_servers(self) -> None:
        """A server that has ended by itself is a fault; it is started again."""
        for number, server in enumerate(self.servers):
            if server.process is not None and server.process.poll() is not None:
                last = server.log.splitlines()[-1:]
                self.account.violations.append(f"ENDED: server {number} ended by itself: {last}")
                server.start()

    def happens(self, what: str, *kinds: str) -> None:
        """A fault begins."""
        self.done.update(kinds)
        self.times.append((what, time.time_ns() // 1_000_000))

    # --- the end

    def _drained(self) -> list[Stored]:
        """Everything that is stored, when all of it is done, or the patience is over."""
        began = time.monotonic()
        stored = self._read()
        while time.monotonic() < began + DRAIN_S:
            unfinished_messages = self.account.unfinished(stored)
            if not unfinished_messages and time.monotonic() > began + STEADY_S:
                break
            time.sleep(2)  # between two readings of everything, within DRAIN_S
            stored = self._read()
        unfinished = len(self.account.unfinished(stored))
        self.print_line(f"drained in {time.monotonic() - began:.0f} s, {unfinished} left")
        return stored

    def _read(self) -> list[Stored]:
        """What any consumer of Kafka finds in the topics, up to the last committed record."""
        client = KafkaConsumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "the-truth",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        stored: list[Stored] = []
        end = time.monotonic() + READ_S
        try:
            names = {Names().to_kafka(topic): topic for topic in (*TOPICS, *INNER)}
            there = client.list_topics(timeout=READ_S).topics
            open_queues = {
                (name, queue) for name in names if name in there for queue in there[name].partitions
            }
            client.assign([TopicPartition(*queue, OFFSET_BEGINNING) for queue in sorted(open_queues)])
            while open_queues and time.monotonic() < end:
                for each in client.consume(500, 0.2):
                    error = each.error()
                    if error is None:
                        stored.append(_stored(each, names))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_queues.discard((each.topic(), each.partition()))
        finally:
            client.close()
        return stored

    def report(self) -> None:
        """For people."""
        account = self.account
        self.print_line(f"faults: {dict(self.done)}; sent: {dict(sorted(account.sent.items()))}")
        self.print_line(
            f"given {len(account.handler_calls)}, done {len(account.done_at)}, "
            f"failed {account.fails.total()} times, "
            f"given again after it was done {account.redelivered} "
            f"(the latest {account.last_redelivery_s:.1f} s after), sent again {account.resent} times"
        )
        for index, (what, at_ms) in enumerate(self.times):
            until_ms = self.times[index + 1][1] if index + 1 < len(self.times) else at_ms + 60_000
            took = account.handed_over_s(at_ms, until_ms)
            pauses = _format_pauses(*self._longest_pauses(at_ms, min(until_ms, self.load_end_ms)))
            self.print_line(
                f"  {what}: every queue went on after {'?' if took is None else f'{took:.1f}'} s; {pauses}"
            )


def _format_pauses(pause_s: float, what: str, floor_s: float) -> str:
    return f"the longest pause was {pause_s:.1f} s ({what}), of Kafka's own clients {floor_s:.1f} s"


def _stored(message: Any, names: dict[str, str]) -> Stored:
    kind, at_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME, "the topic has the producer's times"
    location = names[message.topic()], message.partition(), message.offset()
    step = dict(message.headers() or []).get(STEP, b"").decode()
    return Stored(location, message.value() or b"", message.key() or b"", at_ms, step)


def judged(running: KafkaRun, rounds: int) -> list[str]:
    """The broken promises of a run; what was seen is said."""
    try:
        broken = running.run(rounds)
    except (NotReady, ConfigError, AssertionError) as error:
        broken = [f"the run broke off: {error}"]
    running.report()
    for text in broken[:SHOWN]:
        running.print_line(f"BROKEN: {text}")
    running.print_line(
        f"{len(broken)} broken" if broken else "0 lost, 0 out of order, 0 early, 0 twice, every cancel true"
    )
    return broken
