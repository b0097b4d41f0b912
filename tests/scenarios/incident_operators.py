"""The two front ends with which the incidents are resolved: HTTP alone, and the command line alone.

Both return the answers of the admin API. An operation is planned first, and started with its token.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from ddmq.cli.root import run
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

Row = dict[str, Any]
ENDED = ("done", "failed", "stopped")
OPERATION_S = 300.0  # a busy machine may need for 10,000 changes


class Operator(Protocol):
    """What an operator does at one server."""

    def __init__(self, server: RealServer) -> None: ...

    def list_findings(self) -> list[Row]: ...

    def follow(self, finding: Row) -> None:
        """Do what a finding states first, which changes nothing."""
        ...

    def list_keys(self, group: str, **chosen: str) -> Row: ...

    def find_lag(self, group: str, topic: str) -> Row: ...

    def show_group(self, group: str) -> Row: ...

    def count_letters(self, group: str) -> Row: ...

    def count_delays(self) -> dict[str, int]:
        """The number of waiting messages by topic."""
        ...

    def list_delays(self, topic: str) -> Row: ...

    def measure_writers(self) -> dict[str, float]:
        """The bytes that this server stored in the busiest topics, in the last seconds or since its start."""
        ...

    def change_subscription(self, group: str, topic: str, **settings: int) -> None: ...

    def unsubscribe(self, group: str, topic: str) -> None: ...

    def hold_delays(self, topic: str) -> None: ...

    def release_delays(self, topic: str) -> None: ...

    def close_topic(self, topic: str) -> None: ...

    def plan(self, kind: str, action: str, **chosen: Any) -> Row: ...

    def start(self, plan: Row, rate: int | None = None) -> Row:
        """Start a plan, and return the operation when it is over."""
        ...


class HttpOperator:
    """Has curl, and nothing else."""

    def __init__(self, server: RealServer) -> None:
        self._server = server

    def list_findings(self) -> list[Row]:
        return list(self._get("findings")["items"])

    def follow(self, finding: Row) -> None:
        assert finding["page"].startswith("/console/"), finding
        assert finding["action"], finding

    def list_keys(self, group: str, **chosen: str) -> Row:
        return self._get("keys", group=group, **chosen)

    def find_lag(self, group: str, topic: str) -> Row:
        (row,) = [row for row in self._get("lag", group=group) if row["topic"] == topic]
        return dict(row)

    def show_group(self, group: str) -> Row:
        return self._get("groups", group)

    def count_letters(self, group: str) -> Row:
        return self._get("dlq", group, "facets")

    def count_delays(self) -> dict[str, int]:
        return dict(self._get("delay")["topics"])

    def list_delays(self, topic: str) -> Row:
        return self._get("delay", "messages", topic=topic, count=1_000)

    def measure_writers(self) -> dict[str, float]:
        busiest = self._get("history", series="in_bytes_per_s")["topics"]
        return {topic: self._measure_recent(topic) for topic in busiest}

    def _measure_recent(self, topic: str) -> float:
        values = self._get("history", series="in_bytes_per_s", topic=topic)["series"]["in_bytes_per_s"]
        return sum(value or 0.0 for value in values[-10:])

    def change_subscription(self, group: str, topic: str, **settings: int) -> None:
        self._post("groups", group, "topics", topic, body=settings)

    def unsubscribe(self, group: str, topic: str) -> None:
        status, answer = self._server.request("DELETE", f"/groups/{quote(group)}?topic={quote(topic)}")
        assert status == 200, answer

    def hold_delays(self, topic: str) -> None:
        self._post("topics", topic, body={"create": False, "hold_delays": True})

    def release_delays(self, topic: str) -> None:
        self._post("topics", topic, body={"create": False, "hold_delays": False})

    def close_topic(self, topic: str) -> None:
        self._post("topics", topic, body={"create": False, "writable": False})

    def plan(self, kind: str, action: str, **chosen: Any) -> Row:
        return self._post("operations", body={"kind": kind, "action": action, "filter": chosen})

    def start(self, plan: Row, rate: int | None = None) -> Row:
        self._post("operations", plan["id"], "start", body={"token": plan["token"], "rate": rate})

        def ended() -> Row | None:
            row = self._get("operations", plan["id"])
            return row if row["state"] in ENDED else None

        return until(ended, "the operation ends", OPERATION_S)

    def _get(self, *path: str, **query: Any) -> Any:
        target = "/" + "/".join(quote(segment, safe="") for segment in path)
        status, answer = self._server.request("GET", f"{target}?{urlencode(query)}" if query else target)
        assert status == 200, answer
        return answer

    def _post(self, *path: str, body: Row) -> Row:
        answer: Row = self._server.admin("POST", *path, body=body)
        return answer


class CommandOperator:
    """Has the `ddmq` command, and nothing else."""

    def __init__(self, server: RealServer) -> None:
        self._admin = server.address("admin")

    def list_findings(self) -> list[Row]:
        return list(self._json("findings", codes=(0, 1))["items"])

    def follow(self, finding: Row) -> None:
        program, *words = shlex.split(finding["command"])
        assert program == "ddmq"
        if words != ["doctor"]:  # which examines the machine on which it runs
            assert self._run(*words, codes=(0, 1)).strip()

    def list_keys(self, group: str, **chosen: str) -> Row:
        return self._json("keys", "--group", group, *_options(chosen))

    def find_lag(self, group: str, topic: str) -> Row:
        (row,) = [row for row in self._json("lag", group) if row["topic"] == topic]
        return dict(row)

    def show_group(self, group: str) -> Row:
        return self._json("group", "show", group)

    def count_letters(self, group: str) -> Row:
        return self._json("dlq", "facets", group)

    def count_delays(self) -> dict[str, int]:
        return dict(self._json("delay", "count")["topics"])

    def list_delays(self, topic: str) -> Row:
        return self._json("delay", "list", topic, "--count", "1000")

    def measure_writers(self) -> dict[str, float]:
        rows = self._json("stats")["counters"].get("ddmq_send_bytes_total", [])
        return {row["topic"]: row["value"] for row in rows}

    def change_subscription(self, group: str, topic: str, **settings: int) -> None:
        self._json("group", "set", group, "--topic", topic, *_options(settings))

    def unsubscribe(self, group: str, topic: str) -> None:
        self._json("group", "delete", group, "--topic", topic, "--yes")

    def hold_delays(self, topic: str) -> None:
        self._json("delay", "hold", topic)

    def release_delays(self, topic: str) -> None:
        self._json("delay", "release", topic)

    def close_topic(self, topic: str) -> None:
        self._json("topic", "set", topic, "--not-writable")

    def plan(self, kind: str, action: str, **chosen: Any) -> Row:
        named = {name.removesuffix("_ms"): value for name, value in chosen.items()}
        return self._json("op", "plan", kind.replace("_", "-"), action, *_options(named))

    def start(self, plan: Row, rate: int | None = None) -> Row:
        limit = () if rate is None else ("--rate", str(rate))
        return self._json("op", "start", plan["id"], plan["token"], "--yes", "--wait", *limit)

    def _json(self, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        return json.loads(self._run(*words, "--json", codes=codes))

    def _run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = run([*words, "--admin", self._admin])
        assert code in codes, (words, code, output.getvalue(), errors.getvalue())
        return output.getvalue()


def _options(named: Row) -> list[str]:
    """Options of a command, by the names that the admin API has for them."""
    return [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
