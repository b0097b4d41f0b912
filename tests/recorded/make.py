"""Records a data directory as a release wrote it.

    git worktree add --detach /tmp/release COMMIT
    python -m tests.recorded.make /tmp/release tests/recorded/NAME.tar.xz [--kill]

The release's server runs from its own source tree with this interpreter's packages; this tree's client
asks it for what story.py says. With --kill the server ends by kill -9, else by SIGTERM. Beside `data`, the
archive holds `recorded.json`: the commit, when it was made, and the ids that the server gave.
"""

from __future__ import annotations

import argparse
import io
import json
import stat
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from ddmq_client import Consumer, FetchConsumer, Message, Producer
from tests.recorded import story
from tests.scenarios.real_server import RealServer, write_config
from tests.support.waits import until


class ReleaseServer(RealServer):
    """`ddmq serve` of another source tree."""

    def __init__(self, folder: Path, config: Path, tree: Path) -> None:
        super().__init__(folder, config)
        self.tree = tree


def make_topics_and_groups(server: RealServer) -> None:
    for topic, settings in story.TOPICS.items():
        server.admin("POST", "topics", topic, body={"create": True} | settings)
    for group, settings in story.GROUPS.items():
        server.admin("POST", "groups", group, body={"topics": ["orders"], "start": "first"} | settings)


def send(producer: Producer) -> dict[str, str]:
    """The id of each message, by its body or key."""
    ids: dict[str, str] = {}
    for number in range(story.ORDERS):
        order = story.order(number)
        ids[order["body"].decode()] = str(producer.send("orders", **order).message_id)
    for key, body in story.LARGE.items():
        ids[key] = str(producer.send("large", body, key=key).message_id)
    return ids


def delay(producer: Producer) -> dict[str, str]:
    """The delay id of each message that has one, by its name."""
    ids: dict[str, str] = {}
    for name, when in story.DELAYS.items():
        sent = producer.send("reminders", name.encode(), key=name, timeout_ms=20_000, **when)
        ids[name] = getattr(sent, "delay_id", None) or ""
    assert producer.cancel(ids["cancelled"]).cancelled
    producer.reschedule(ids["moved"], delay=story.MOVED_TO)
    return ids


def take(server: RealServer, group: str, decide: Any, count: int = story.ORDERS) -> None:
    """`decide` is called with each message and its number; results are stored when this returns."""
    address = f"127.0.0.1:{server.ports['consumer']}"
    messages: list[Message] = []
    with Consumer(address, group, "orders", linger_ms=50, max_batch=50) as consumer:
        until(lambda: messages.extend(consumer.pull(50, timeout_ms=100)) or len(messages) >= count, group)
        for message in messages:
            decide(message, int(message.properties["n"]))


def fail_some(message: Message, number: int) -> None:
    if number == story.FAILED:
        message.fail(reason=story.REASON)
    else:
        message.ack()


def take_in_order(message: Message, number: int) -> None:
    if number in story.ORDERED_ACKED:
        message.ack()
    elif number == story.ORDERED_FAILED:
        message.fail(reason="not now")


def consume(server: RealServer) -> None:
    """What the groups do."""
    take(server, "holes", lambda message, _: message.offset in story.HOLES_ACKED and message.ack())
    take(server, "failing", fail_some)
    take(server, "spent", fail_some)
    server.admin("POST", "groups", "ordered", "keys", body={"action": "park", "key": story.PARKED})
    take(server, "ordered", take_in_order, count=story.KEYS - 1)
    with FetchConsumer(f"127.0.0.1:{server.ports['consumer']}", "loader") as consumer:
        queues: set[str] = set()
        until(lambda: queues.update(each.queue for each in consumer.fetch(50)) or len(queues) == 3, "loader")
        assert consumer.ack({"orders": dict.fromkeys(queues, story.FETCHED)})


def record(tree: Path, kill: bool) -> bytes:
    """The archive."""
    with tempfile.TemporaryDirectory(prefix="recorded-") as name:
        folder = Path(name)
        server = ReleaseServer(folder, write_config(folder / "conf", **story.CONFIG), tree)
        try:
            server.start()
            wall_ms = time.time_ns() // 1_000_000
            make_topics_and_groups(server)
            with Producer(f"127.0.0.1:{server.ports['producer']}", timeout_ms=20_000) as producer:
                recorded = {"messages": send(producer), "delays": delay(producer), "wall_ms": wall_ms}
            consume(server)
            until(lambda: server.admin("GET", "dlq"), "the dead letter")
            until(lambda: server.admin("GET", "topics", "reminders", "messages"), "the first delayed message")
            until(lambda: list(server.data_dir.glob("metrics/**/*.jsonl")), "a sample file")
            if kill:
                server.kill()
        finally:
            server.end()
        recorded["commit"] = subprocess.check_output(
            ["git", "rev-parse", "HEAD"], cwd=tree, text=True
        ).strip()
        return packed(server.data_dir, recorded)


def packed(data: Path, recorded: dict[str, Any]) -> bytes:
    """Without sockets, and without what is written for people and names the machine."""

    def without_sockets(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = data.parent / member.name
        if stat.S_ISSOCK(path.lstat().st_mode) or path.name in ("LOG", "writer.lock"):
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz", preset=9) as tar:
        tar.add(data, "data", filter=without_sockets)
        text = json.dumps(recorded, indent=1).encode()
        member = tarfile.TarInfo("recorded.json")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    return archive.getvalue()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a checkout of the release")
    parser.add_argument("archive", type=Path)
    parser.add_argument("--kill", action="store_true", help="end the server with kill -9")
    arguments = parser.parse_args()
    archive = record(arguments.tree.resolve(), arguments.kill)
    arguments.archive.write_bytes(archive)
    print(f"{arguments.archive}: {len(archive):,} bytes")


if __name__ == "__main__":
    main()
