"""`ddmq processes` and `ddmq clients`: the processes of a server, and who is connected to them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from ddmq.cli.admin_client import ITEMS_MAX, AdminClient, admin_options
from ddmq.cli.output import hint, print_json, print_line, print_table
from ddmq.cli.values import GROUP, Integer
from ddmq.moments import format_age

PROCESS_COLUMNS = ("process", "parts", "version", "up", "memory MiB", "cpu", "queues", "delay shards")
CLIENT_COLUMNS = ("group", "client", "address", "process", "since", "seen", "in flight", "topics")


@click.command("processes")
@admin_options
def list_processes(admin: AdminClient, as_json: bool) -> None:
    """List the processes of the server: version, memory, processor time, and what each of them owns.

    They are the process that answers, those of the same `ddmq serve --processes`, and those that own delay
    shards, also of other servers on the same data directory. "cpu": seconds of processor time per second
    since the start.

    \b
    Examples:
      ddmq processes
      ddmq processes --json
    """
    answer = _get_list(admin, "processes", count=ITEMS_MAX)
    if as_json:
        return print_json(answer)
    now_ms = time.time_ns() // 1_000_000
    print_table("", PROCESS_COLUMNS, [_process_row(item, now_ms) for item in answer["items"]])
    _print_missing(answer)
    return None


def _get_list(admin: AdminClient, path: str, **query: Any) -> Mapping[str, Any]:
    """Return a page of a list. `next` is None at its end, as in the output of earlier releases."""
    answer: dict[str, Any] = admin.get(path, **query, form=2)
    return {"next": None} | answer


def _process_row(item: Mapping[str, Any], now_ms: int) -> list[Any]:
    up_s = max((now_ms - item["since_ms"]) / 1000, 1.0)
    queues = sum(each["queues"] for each in item["subscriptions"])
    return [
        item["name"], ", ".join(item["parts"]), item.get("version", ""), format_age(up_s),
        item["memory_bytes"] >> 20, round(item["cpu_s"] / up_s, 2), queues, len(item["delay_shards"]),
    ]  # fmt: skip


@click.command("clients")
@click.argument("group", type=GROUP, required=False)
@click.option("--count", type=Integer(1, 1000), default=100, show_default=True, help="Show so many at most.")
@click.option("--text", help="Only clients with this text in the group, the id, the process, or a topic.")
@click.option("--after", metavar="NEXT", help="Continue where an earlier listing ended, which printed this.")
@admin_options
def list_clients(
    group: str | None, count: int, text: str | None, after: str | None, admin: AdminClient, as_json: bool
) -> None:
    """List the clients that consume, for all groups or for GROUP alone, and the hosts of producers.

    "seen": the time since the client's last pull. Clients of old DDMQ have no id and are listed by host. A
    producer is known only by its connections.

    \b
    Examples:
      ddmq clients
      ddmq clients billing
    """
    answer = _get_list(admin, "clients", group=group, count=count, text=text, after=after)
    if as_json:
        return print_json(answer)
    now_ms = time.time_ns() // 1_000_000
    consumers = [item for item in answer["items"] if item["kind"] == "consumer"]
    if consumers:
        print_table("", CLIENT_COLUMNS, [_client_row(item, now_ms) for item in consumers])
    for item in answer["items"]:
        if item["kind"] == "producer":
            print_line(
                f"producers at {item['address']}: {item['connections']} connections to {item['process']}"
            )
    if not answer["items"]:
        hint("no client is connected")
    if answer["next"] is not None:
        hint(f"there are more; go on with --after {answer['next']}")
    _print_missing(answer)
    return None


def _client_row(item: Mapping[str, Any], now_ms: int) -> list[Any]:
    last_seen = format_age((now_ms - item["last_seen_ms"]) / 1000)
    last_seen += "" if item["connected"] else ", disconnected"
    return [
        item["group"], item["client_id"], item["address"], item["process"],
        format_age((now_ms - item["since_ms"]) / 1000), last_seen,
        item["in_flight"], ", ".join(item["topics"]),
    ]  # fmt: skip


def _print_missing(answer: Mapping[str, Any]) -> None:
    for name, address in answer["missing"].items():
        hint(f"{name} at {address} does not answer")
