"""Count the files that a message passes: one real message each, traced through a real server.

    python tools/walk.py            a table of routes, files and limits; exit code 1 when one is passed
    python tools/walk.py --files    with the files of each route, in the order in which they were entered

The server runs in this process, its clients in another. A profile function records each file of the product
whose code is entered on the hub or on a native thread while a step runs. Each step is done several times,
and a file counts when it was entered each time: what happens only the first time (topics created, queues
claimed) and what a timer does meanwhile is no part of a route. Nor is what runs in every turn of the loop,
whoever asks (a file that is entered in nearly every short moment of rest, too). The sources run, interpreted:
a profile function is not told of compiled code.
"""

from __future__ import annotations

import _thread
import contextlib
import http.client
import json
import logging
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
os.environ["DDMQ_COMPILED"] = "0"
PACKAGES = ("proxy_producer", "proxy_consumer", "delay_service", "backend", "ddmq", "ddmq_common", "ddmq_rpc")
REPEATS, SETTLED_S, REST_S, DEADLINE_S, DUE_MS = 10, 0.25, 0.01, 30.0, 40
TICK_S = 0.005
ALWAYS = 0.8  # of the moments of rest
LEVELS = {"levels": ["20ms", "40ms", "60ms", "80ms"]}


class Route(NamedTuple):
    """A way through the house, how many files it passes at most today, and how many it shall."""

    name: str
    step: str
    files_max: int
    goal: int
    beside: tuple[str, ...] = ()  # steps whose files are theirs, not this one's


ROUTES = (
    Route("send", "send", 29, 14),
    Route("pull with acknowledgements", "pull_ack", 34, 20),
    Route("acknowledgement, until it is durable", "ack", 30, 16),
    Route("retry, until it is delivered again", "retry", 20, 16, ("pull_ack", "ack")),
    Route("delayed message, until it is in its topic", "delay", 60, 24),
    Route("an operator parks a key", "park", 39, 6, ("health",)),
    Route("any answer of the admin API", "health", 15, 8),
)


class Trace:
    """Which files of the product are entered, in order, while it is on. Install it before anything starts."""

    def __init__(self) -> None:
        self.on = False
        self.files: dict[str, None] = {}
        self._shown: dict[str, str] = {}

    def install(self) -> None:
        """Profile this thread and every native thread that starts from now on."""
        start = _thread.start_new_thread

        def start_traced(function: Callable[..., Any], args: tuple[Any, ...], *more: Any) -> int:
            def run(*arguments: Any, **named: Any) -> Any:
                sys.setprofile(self.on_profile_event)
                return function(*arguments, **named)

            return start(run, args, *more)

        _thread.start_new_thread = start_traced
        sys.setprofile(self.on_profile_event)

    def on_profile_event(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function."""
        if self.on and event == "call":
            path = frame.f_code.co_filename
            shown = self._shown.get(path)
            if shown is None:
                shown = self._shown[path] = product_file(path)
            if shown:
                self.files.setdefault(shown)

    @contextlib.contextmanager
    def record(self) -> Iterator[dict[str, None]]:
        self.files = {}
        self.on = True
        try:
            yield self.files
        finally:
            self.on = False


def product_file(path: str) -> str:
    """The file's name in the tree when it is the product's, else ""."""
    try:
        shown = Path(path).resolve().relative_to(ROOT)
    except ValueError:
        return ""
    return str(shown) if shown.parts[0] in PACKAGES else ""


def walk() -> dict[str, list[str]]:
    """The files of each step."""
    trace = Trace()
    trace.install()
    import gevent
    from gevent.subprocess import PIPE, Popen

    from backend.file_log import log
    from ddmq.server.config import load_folder, with_flags
    from ddmq.server.process.server_process import COMPONENTS, ServerProcess
    from proxy_consumer import heartbeat

    # A tick is no message's: it goes on at rest here, so that its files are left out.
    heartbeat.REST_S = log.REST_S = TICK_S

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        any_port = "127.0.0.1:0"
        flags = {"data_dir": Path(folder) / "data", "producer": any_port, "consumer": any_port}
        conf = Path(folder, "conf")
        conf.mkdir()
        (conf / "delay_service.yaml").write_text(json.dumps(LEVELS))
        server = ServerProcess(with_flags(load_folder(conf), **flags, admin=any_port), COMPONENTS)
        server.start()
        gevent.get_hub().loop.run_callback(sys.setprofile, trace.on_profile_event)
        ports = [str(server.addresses[service].port) for service in ("producer", "consumer", "admin")]
        command = [sys.executable, str(Path(__file__).resolve()), "client", *ports]
        files_by_step: dict[str, list[str]] = {}
        with Popen(command, stdin=PIPE, stdout=PIPE, bufsize=0) as client:

            def do(step: str) -> None:
                client.stdin.write(step.encode() + b"\n")
                with gevent.Timeout(DEADLINE_S, RuntimeError(f"{step} did not end")):
                    if client.stdout.readline().strip() != step.encode():
                        raise RuntimeError(f"{step} failed")

            steps = [route.step for route in ROUTES]
            rests: Counter[str] = Counter()
            for step in [*steps, *(step for _ in range(REPEATS) for step in steps)]:
                do(f"before_{step}")
                gevent.sleep(SETTLED_S)
                with trace.record() as rest:
                    gevent.sleep(REST_S)
                rests.update(rest.keys())
                with trace.record() as files:
                    do(step)
                files_by_step[step] = [file for file in files if file in files_by_step.get(step, files)]
            always = {file for file, times in rests.items() if times > ALWAYS * len(steps) * (REPEATS + 1)}
            client.stdin.close()
        server.drain()
        server.close()
    return {
        route.step: [
            file
            for file in files_by_step[route.step]
            if file not in always and not any(file in files_by_step[step] for step in route.beside)
        ]
        for route in ROUTES
    }


class Wire:
    """One connection that makes calls of one service and waits for their answers."""

    def __init__(self, port: int, idl: Any, service: str) -> None:
        self._idl, self._service = idl, service
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)

    def call(self, method: str, **arguments: Any) -> Any:
        from ddmq_rpc.client_side import decode_reply, encode_call

        self._socket.sendall(encode_call(self._idl, self._service, method, **arguments))
        length = self._read(4)
        frame = length + self._read(int.from_bytes(length, "big"))
        return decode_reply(self._idl, self._service, frame).result.success

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        return data


class Client:
    """Does one step at a time against the server, over sockets; `before_STEP` makes ready for it."""

    def __init__(self, producer: int, consumer: int, admin: int) -> None:
        from ddmq_client.idl import consumer as consumer_idl
        from ddmq_client.idl import producer as producer_idl

        self._admin_port = admin
        self._producer_idl, self._consumer_idl = producer_idl, consumer_idl
        self._produce = Wire(producer, producer_idl, "ProducerService")
        self._consume = Wire(consumer, consumer_idl, "ConsumerService")
        self._answer: Any = None
        plain = {"start": "first", "retry_intervals_ms": [], "retry_steps": 16}
        for topic, more in (
            ("walk", plain),
            ("walk-retry", plain),
            ("walk-keys", plain | {"order_key": "KEY"}),
        ):
            self._admin("POST", f"topics/{topic}", {"create": True, "queues": 1})
            self._admin("POST", f"groups/{topic}", {"topics": [topic]} | more)

    def before_pull_ack(self) -> None:
        self.send()
        self.send()
        self._answer = self._pull("walk")

    def pull_ack(self) -> None:
        self._answer = self._pull("walk", self._result("success"))

    def ack(self) -> None:
        self._consume.call("submit", result=self._result("success"))

    def before_retry(self) -> None:
        self._send("walk-retry")
        self._answer = self._pull("walk-retry")

    def retry(self) -> None:
        self._consume.call("submit", result=self._result("fail"))
        self._answer = self._pull("walk-retry")
        self._consume.call("submit", result=self._result("success"))

    def send(self) -> None:
        self._send("walk")

    def delay(self) -> None:
        due = int(time.time() * 1000) + DUE_MS
        message = self._producer_idl.DelayMessage(
            topic="walk-delay", body=b"x", tags="", action=1, dmsgtype=2, dueMs=due, fresh=True
        )
        if self._produce.call("sendDelaySync", delayMessage=message, timeout=5_000).code:
            raise RuntimeError("the delayed message was refused")
        time.sleep(1.5 * DUE_MS / 1000)

    def park(self) -> None:
        self._admin("POST", "groups/walk-keys/keys", {"action": "park", "key": "k"})

    def before_health(self) -> None:
        self._admin("POST", "groups/walk-keys/keys", {"action": "replay", "key": "k"})

    def health(self) -> None:
        self._admin("GET", "health")

    def _send(self, topic: str, key: str = "") -> None:
        message = self._producer_idl.Message(topic=topic, key=key, body=b"x")
        if self._produce.call("sendSync", message=message, timeout=5_000).code:
            raise RuntimeError("the message was refused")

    def _pull(self, topic: str, result: Any = None) -> Any:
        request = self._consumer_idl.PullRequest(
            groupId=topic, topic=topic, maxBatchSize=1, maxLingerTime=int(DEADLINE_S * 1000), result=result
        )
        answer = self._consume.call("pull", request=request)
        if not answer.messages:
            raise RuntimeError(f"nothing came from {topic}")
        return answer

    def _result(self, outcome: str) -> Any:
        offsets = {f"{outcome}Offsets": [each.offset for each in self._answer.messages]}
        empty = {"successOffsets": [], "failOffsets": []}
        return self._consumer_idl.ConsumeResult(context=self._answer.context, **(empty | offsets))

    def _admin(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._admin_port, timeout=DEADLINE_S)
        text = None if body is None else json.dumps(body)
        connection.request(method, "/" + path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content!r}")
        return json.loads(content or b"null")


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    if arguments[:1] == ["client"]:
        client = Client(*(int(port) for port in arguments[1:]))
        for line in sys.stdin:
            getattr(client, line.strip(), lambda: None)()
            print(line.strip(), flush=True)
        return 0
    files_by_step = walk()
    for route in ROUTES:
        files = files_by_step[route.step]
        print(f"{len(files):4}  (at most {route.files_max}, goal {route.goal})  {route.name}")
        if "--files" in arguments:
            print("\n".join(f"        {file}" for file in files))
    return 0 if all(len(files_by_step[route.step]) <= route.files_max for route in ROUTES) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
