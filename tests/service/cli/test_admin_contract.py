"""The admin API of a real server is what its own description says: every route, and requests made from it."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.admin.routes import ROUTES
from ddmq.server.http.parameters import Query
from ddmq_client import Consumer
from tests.scenarios.real_server import PATIENCE_S, RealServer, running, write_config
from tests.service.cli.conftest import Shell
from tests.support.admin_contract import check_answer, described
from tests.support.transaction_calls import TransactionCalls, message, new_id
from tests.support.waits import until

FUZZED_S = 30  # values at each bound first, then others until the time is over
EXAMPLES = 4  # of each route at a time
HOOKS = """
import schemathesis

@schemathesis.check
def no_failure(context, response, case):
    assert response.status_code < 500 or response.status_code in (503, 504), response.text
"""
CONFIGURATION = """
[checks.negative_data_rejection]
expected-statuses = ["400", "403", "404", "405", "408", "409", "411", "412", "413", "415", "503", "504"]
"""


TWO_FORMS = {f"{each.method} {each.path}" for each in ROUTES if issubclass(each.query or Query, FormQuery)}
TWO_FORMS -= {"GET /history", "GET /dlq/{group}/export"}
PAGED = {f"{route.method} {route.path}" for route in ROUTES if route.listing is not None}


# Settings and recorded states are shown as they are; dead letters without an error are counted as such.
VALUES = (".settings", ".before", ".after", ".sample", ".by_error[].value")


def find_placeholders(value: Any, path: str = "") -> Iterator[str]:
    """Yield where an answer has null, -1 or an empty text, which form 2 leaves out except in VALUES."""
    if value is None or (not path.endswith(VALUES) and value in ("", -1)):
        yield path
    elif path.endswith(VALUES):
        return
    if isinstance(value, dict):
        for name, each in value.items():
            yield from find_placeholders(each, f"{path}.{name}")
    if isinstance(value, list):
        for each in value:
            yield from find_placeholders(each, f"{path}[]")


class Visitor:
    """Makes requests to a server, checks the answers, and collects the operations that were answered."""

    def __init__(self, server: RealServer) -> None:
        self._server = server
        self.operations: set[str] = set()
        self.most_items: dict[str, int] = {}  # in form 2, by operation

    def visit(self, method: str, target: str, body: Any = None) -> Any:
        """The answer to a request, which is no error."""
        status, answer = self._server.request(method, target, body)
        assert status == 200, (method, target, answer)
        operation = check_answer(method, target, status, answer)
        assert operation is not None
        self.operations.add(operation)
        if method == "GET" and operation in TWO_FORMS:
            self._visit_second_form(operation, target)
        return answer

    def _visit_second_form(self, operation: str, target: str) -> None:
        """Request form 2, of a list page by page, and check the answers."""
        target += f"{'&' if '?' in target else '?'}form=2"
        after = ""
        for _ in range(1_000):
            status, answer = self._server.request("GET", target + after)
            assert status == 200, (target, after, answer)
            check_answer("GET", target, status, answer)
            assert not list(find_placeholders(answer)), target
            if operation in PAGED:
                self.most_items[operation] = max(len(answer["items"]), self.most_items.get(operation, 0))
            if "next" not in answer or operation not in PAGED:
                return
            after = f"&after={answer['next']}"
        raise AssertionError(f"{target} has no end")


@pytest.fixture
def dead_group(shell: Shell, topic: str) -> str:
    """A group, ordered by key, with a dead letter, and a key that is blocked by the next message."""
    shell("topic", "create", topic, "--queues", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--ordered-deliveries-max", "1", "--ordered-interval-ms", "1", "--retry-intervals-ms", "",
    )  # fmt: skip
    for body in ("dead", "blocked", "behind"):
        shell("send", topic, body, "--key", "k")
    with Consumer(shell.server.address("consumer"), topic, topic, linger_ms=50) as consumer:

        def pull_and_fail() -> bool:
            for received in consumer.pull(1, timeout_ms=200):
                received.fail()
            return bool(shell.server.admin("GET", "dlq", topic)["letters"])

        until(pull_and_fail, "it is a dead letter")
    shell.server.admin("POST", "groups", topic, "keys", body={"action": "park", "key": "k"})
    return topic


def fail_once(shell: Shell, topic: str) -> str:
    """Fail a message of the topic, which then waits for a retry; return the group."""
    group = f"{topic[:40]}-retrying"
    body = {"topics": [topic], "start": "first", "retry_intervals_ms": []}
    shell.server.admin("POST", "groups", group, body=body)
    with Consumer(shell.server.address("consumer"), group, topic, linger_ms=50) as consumer:
        until(lambda: [each.fail() for each in consumer.pull(1, timeout_ms=500)], "it has failed")
        target = f"/retries?group={group}"
        until(lambda: shell.server.request("GET", target)[1]["items"], "it waits for a retry")
    return group


def test_every_route_answers_as_described(shell: Shell, topic: str, dead_group: str) -> None:
    calls = TransactionCalls(shell.server.ports["producer"])
    transactions = [new_id(), new_id()]
    for transaction in transactions:
        assert calls.prepare_when_owned(transaction, message(topic, b"one"), group=topic).code == 0
    visitor = Visitor(shell.server)
    visit = visitor.visit

    for path in ("/health", "/ready", "/metrics", "/openapi.json", "/stats", "/usage", "/findings",
                 "/snapshot", "/history", "/topics?internal=1", "/groups", "/lag", "/dlq", "/transactions",
                 "/delay", "/delay/levels", "/auth", "/auth/identities", "/auth/tokens", "/auth/audit",
                 "/auth/explain?identity=a&right=metrics"):  # fmt: skip
        visit("GET", path)
    visitor.operations |= {"POST /auth/tokens", "DELETE /auth/tokens/{id}"}  # test_access_by_requests.py
    visitor.operations.add("GET /events")  # a stream has no end: test_live_on_servers.py reads one
    assert visit("GET", "/openapi.json") == json.loads(json.dumps(described()))
    visit("GET", f"/topics/{topic}")
    undo_id = visit("POST", f"/topics/{topic}", {"create": False, "trace_one_in": 1})["undo"]
    assert undo_id in [row["id"] for row in visit("GET", "/changes")["items"]]
    assert visit("GET", f"/changes/{undo_id}")["undoable"]
    assert visit("POST", f"/changes/{undo_id}/undo")["undoes"] == undo_id
    visit("POST", f"/topics/{topic}", {"create": False, "trace_one_in": 1})
    for choice in ("", "?queue=0&offset=0", "?time_ms=0", f"?count=2&group={dead_group}"):
        (first, *_) = visit("GET", f"/topics/{topic}/messages{choice}")
    visit("POST", "/messages", {"topic": topic, "body": "now", "key": "k"})
    delayed = visit("POST", "/messages", {"topic": topic, "body": "later", "delay_ms": 3_600_000})
    visit("GET", f"/messages/{first['id']}?group={dead_group}")
    visit("GET", f"/messages/{first['id']}/story")
    visit("GET", f"/topics/{topic}/story?queue=0&offset=0")
    visit("GET", f"/groups/{dead_group}")
    visit("POST", f"/groups/{dead_group}", {"topics": [topic]})
    visit("POST", f"/groups/{dead_group}/topics/{topic}", {"batch_max": 7})
    visit("GET", f"/groups/{dead_group}/offsets")
    visit("POST", f"/groups/{dead_group}/offsets", {"topic": topic, "to": "first", "dry_run": True})
    assert visit("GET", f"/groups/{dead_group}/keys")
    assert visit("GET", "/keys?group=" + dead_group)["by_error"]
    chosen = {"group": dead_group}
    planned = visit("POST", "/operations", {"kind": "keys", "action": "replay", "filter": chosen})
    assert planned["sample"]
    visit("POST", f"/groups/{dead_group}/keys", {"action": "skip", "key": "k"})
    assert visit("GET", f"/dlq/{dead_group}")["shown"]
    assert visit("GET", f"/dlq/{dead_group}/facets")["by_error"]
    visit("GET", f"/dlq/{dead_group}/export")
    planned = visit("POST", "/operations", {"kind": "dead_letters", "action": "resend", "filter": chosen})
    assert (bool(planned["sample"]), planned["reaches"].keys()) == (True, {topic})
    operation = f"/operations/{planned['id']}"
    assert visit("GET", operation)["state"] == "planned"
    visit("POST", f"{operation}/start", {"token": planned["token"]})
    until(lambda: visit("GET", operation)["state"] == "done", "all are resent")
    assert visit("POST", f"{operation}/stop")["state"] == "done"
    assert planned["id"] in [row["id"] for row in visit("GET", "/operations")["operations"]]
    visit("POST", f"/dlq/{dead_group}/resend", {"all": True})
    visit("POST", f"/dlq/{dead_group}/purge", {"all": True})
    visit("GET", f"/transactions/{transactions[0]}")
    visit("POST", f"/transactions/{transactions[0]}", {"action": "commit"})
    visit("POST", f"/transactions/{transactions[1]}", {"action": "rollback"})
    visit("GET", f"/transactions/{transactions[1]}")
    (waiting,) = visit("GET", f"/delay/messages?topic={topic}")["messages"]
    assert waiting["id"] == delayed["delay_id"]
    visit("GET", f"/delay/messages/{waiting['id']}")
    body = {"kind": "delays", "action": "reschedule", "filter": {"topic": topic}, "shift_ms": 5_000}
    assert visit("POST", "/operations", body)["sample"]
    visit("POST", f"/delay/messages/{waiting['id']}", {"action": "cancel"})
    visit("GET", f"/delay/messages/{waiting['id']}")
    visit("GET", f"/delay/count?topic={topic}")
    visit("GET", f"/delay/histogram?topic={topic}")
    for path in ("/processes", "/clients", "/config?changed=1", "/log"):
        visit("GET", path)
    retrying_group = fail_once(shell, topic)
    visit("GET", f"/retries?group={retrying_group}")
    visit("DELETE", f"/groups/{retrying_group}")
    position = {"offset": 0, "id": "0" * 32}
    change = {"group": dead_group, "action": "now", "level": 1, "messages": [position]}
    assert visit("POST", "/retries", change | {"dry_run": True})["changed"] == 0
    assert visit("POST", "/retries", change)["items"][0]["reason"]
    visit("POST", f"/topics/{topic}/search", {"text": "one"})
    if shell.server.admin("GET", "log")["disk"] is not None:
        visit("POST", "/log/clean", {"before_ms": 1, "dry_run": True})
    else:
        visitor.operations.add("POST /log/clean")  # the engine deletes by itself
    visit("POST", "/delay/backup", {"folder": topic[:40]})
    visit("DELETE", f"/groups/{dead_group}")
    visit("DELETE", f"/topics/{topic}")
    assert visitor.operations == {f"{route.method} {route.path}" for route in ROUTES}
    assert visitor.most_items.keys() == PAGED
    empty = {name for name, items in visitor.most_items.items() if not items}
    assert empty <= {"GET /findings", "GET /usage"}, "nothing is wrong, and rights are off"
    calls.close()


@pytest.fixture
def connection(server: RealServer) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE_S)
    yield opened
    opened.close()


def test_a_client_that_accepts_gzip_gets_it(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/openapi.json", headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    packed = response.read()
    assert (response.headers["Content-Encoding"], response.headers["Cache-Control"]) == ("gzip", "no-store")
    assert json.loads(gzip.decompress(packed))["openapi"] == "3.1.0"


def test_a_group_that_another_has_changed_is_not_changed(
    server: RealServer, topic: str, connection: http.client.HTTPConnection
) -> None:
    server.admin("POST", "groups", topic, body={"topics": ["owned"]})

    def change(batch_max: int, if_match: str) -> tuple[int, str, Any]:
        headers = {"Content-Type": "application/json", "If-Match": if_match}
        body = json.dumps({"batch_max": batch_max})
        connection.request("POST", f"/groups/{topic}/topics/owned", body, headers)
        response = connection.getresponse()
        return response.status, response.headers.get("ETag", ""), json.loads(response.read())

    connection.request("GET", f"/groups/{topic}")
    response = connection.getresponse()
    seen, _ = response.headers["ETag"], response.read()
    status, after, _ = change(3, seen)
    assert (status, after != seen) == (200, True)
    status, _, answer = change(4, seen)
    assert (status, f"group {topic!r} was changed meanwhile" in answer["error"]) == (412, True)
    (subscription,) = server.admin("GET", "groups", topic)["subscriptions"]
    assert subscription["settings"]["batch_max"] == 3
    assert change(4, after)[0] == 200


def test_requests_made_from_the_description_find_no_fault(tmp_path: Path) -> None:
    """No 5xx but 503 and 504, no status that is not declared, no answer of another form; and what violates
    the description is rejected."""
    (tmp_path / "admin_checks.py").write_text(HOOKS)
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    config = write_config(tmp_path / "conf", topics={"topics": {"owned": {"queues": 2}}})
    with running(tmp_path / "server", config) as server:
        server.admin("POST", "topics", "orders", body={"queues": 3})
        server.admin("POST", "groups", "billing", body={"topics": ["orders"]})
        command = [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(tmp_path / "schemathesis.toml"),
            "run", f"http://127.0.0.1:{server.ports['admin']}/openapi.json", "--no-color", "--seed", "1",
            "--phases", "coverage,fuzzing", "--max-time", str(FUZZED_S), "--max-examples", str(EXAMPLES),
            "--exclude-checks", "not_a_server_error,positive_data_acceptance",
            "--exclude-path", "/events",  # it has no end
            "--generation-database", "none", "--output-truncate", "false",
        ]  # fmt: skip
        environ = os.environ | {"PYTHONPATH": str(tmp_path), "SCHEMATHESIS_HOOKS": "admin_checks"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
            timeout=PATIENCE_S + FUZZED_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
        assert f"{len(ROUTES) - 2} selected" in done.stdout, "all but the description itself and the stream"
        assert server.request("GET", "/ready")[0] == 200
