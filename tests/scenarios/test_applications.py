"""The applications of examples/, each run as its first lines say, against a real server."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddmq.cli.root import run
from tests.scenarios.real_server import PATIENCE_S, RealServer, running, write_config
from tests.support.ports import port_of, reserved
from tests.support.waits import until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PORTS = {"producer": 9613, "consumer": 9713, "admin": 9813}


class ExampleRun:
    """A copy of an example that talks to a test's server, with its output in a file."""

    def __init__(self, name: str, server: RealServer, folder: Path) -> None:
        self.folder = folder
        self.text = (EXAMPLES / name).read_text()
        for component, port in PORTS.items():
            self.text = self.text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[component]}")
        self.path = folder / name
        self.path.write_text(self.text)
        self.admin = f"127.0.0.1:{server.ports['admin']}"

    def run_commands(self, *names: str) -> None:
        """Run the `ddmq NAME …` commands of the first lines in this process."""
        head = self.text.split('"""')[1].replace("\\\n", "")
        for command in re.findall(r"(?:^ {4}|&& )ddmq (.*)$", head, re.MULTILINE):
            if command.startswith(names):
                assert run([*shlex.split(command), "--admin", self.admin]) == 0, command

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        with (self.folder / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", *command], cwd=self.folder, stdout=output, stderr=output, text=True
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def run_to_its_end(self, patience_s: float = PATIENCE_S) -> str:
        with self.started(str(self.path)) as process:
            assert process.wait(patience_s) == 0, self.output
        return self.output


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with running(tmp_path / "server") as started:
        yield started


def test_an_order_that_fails_is_parked_and_continues_in_order_after_its_repair(
    server: RealServer, tmp_path: Path
) -> None:
    application = ExampleRun("order_pipeline.py", server, tmp_path)
    application.run_commands("group set")
    with application.started(str(application.path)) as process:
        until(lambda: "order 18: shipped" in application.output, "the other orders are handled")
        until(
            lambda: "parked" in str(server.admin("GET", "groups", "shipping", "keys")), "order 17 is parked"
        )
        assert "order 17: packed" not in application.output
        (tmp_path / "address-of-17").touch()
        application.run_commands("group replay")
        until(lambda: "order 17: shipped" in application.output, "order 17 continues")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    for order in ("16", "17", "18"):
        steps = re.findall(rf"^order {order}: (\w+)$", application.output, re.MULTILINE)
        assert steps == ["reserved", "packed", "shipped"]


def test_reminders_come_in_the_order_of_their_times(server: RealServer, tmp_path: Path) -> None:
    output = ExampleRun("reminders.py", server, tmp_path).run_to_its_end()
    assert "coffee: cancelled" in output
    assert "coffee is ready" not in output
    assert output.index("put the kettle on") < output.index("tea is ready")


def test_each_payment_is_booked_once_through_kills(server: RealServer, tmp_path: Path) -> None:
    application = ExampleRun("exactly_once.py", server, tmp_path)
    application.run_commands("group set")
    assert "400 payments, 800 entries, each exactly once" in application.run_to_its_end()


def test_a_repeated_request_stores_nothing_twice(server: RealServer, tmp_path: Path) -> None:
    application = ExampleRun("web_shop.py", server, tmp_path)
    with reserved() as reserved_socket, application.started(
        "-m", "uvicorn", "--app-dir", str(tmp_path), "--port", str(port_of(reserved_socket)), "web_shop:app"
    ) as process:  # fmt: skip
        until(lambda: "Uvicorn running on" in application.output, "the service answers")

        def post(path: str, key: str, body: object) -> dict[str, object]:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port_of(reserved_socket)}{path}",
                json.dumps(body).encode(),
                {"Idempotency-Key": key},
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return dict(json.load(response))

        for path, body in (("/orders", {"item": "two boxes"}), ("/visits", {"page": "/boxes"})):
            assert [post(path, "a1", body)["repeated"] for _ in range(3)] == [False, True, True]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
    topics = {row["topic"]: row for row in server.admin("GET", "topics")}
    assert {name: topics[name]["messages"] for name in ("orders", "visits")} == {"orders": 1, "visits": 1}


def test_a_pushed_message_that_is_not_accepted_is_redelivered(tmp_path: Path) -> None:
    with reserved() as reserved_socket:
        target = f"127.0.0.1:{port_of(reserved_socket)}"
        config = write_config(tmp_path / "conf", proxy_consumer={"push_targets": [target]})
        with running(tmp_path / "server", config=config) as server:
            application = ExampleRun("http_push.py", server, tmp_path)
            application.text = application.text.replace("127.0.0.1:8080", target)
            application.run_commands("group set")
            with application.started(str(application.path), str(port_of(reserved_socket))):
                sends = ["send", "orders", "two boxes", "--key", "17"]
                assert run([*sends, "--producer", f"127.0.0.1:{server.ports['producer']}"]) == 0
                until(lambda: "order 17: two boxes" in application.output, "the message is pushed again")


def test_sums_of_a_topic_are_written_to_another_one(server: RealServer, tmp_path: Path) -> None:
    output = ExampleRun("spark_topic.py", server, tmp_path).run_to_its_end(patience_s=5 * PATIENCE_S)
    assert re.findall(r"^\|\s*(\w+)\|\s*(\d+)\|$", output, re.MULTILINE) == [
        ("asia", "15"), ("eu", "160"), ("us", "100")
    ]  # fmt: skip
    topics = {row["topic"]: row for row in server.admin("GET", "topics")}
    assert topics["sums-by-region"]["messages"] == 3
