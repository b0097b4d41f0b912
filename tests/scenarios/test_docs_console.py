"""The commands of README.md and docs/ are typed as the pages show them, in order, against a real server.

A page's commands run in scenes. A scene begins with an empty server, with what SCENES prepares, and ends with
the page or where the next begins. Where a page shows what a command prints, that is what it prints, standard
output and standard error together. Ids, times, durations, queues of keys, and ports are not compared, nor
what `…` stands for. Commands that are not run have a reason in tests/support/page_classes.py.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddmq.cli.root import run
from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.page_classes import RUN, class_of
from tests.support.pages import ROOT, Block, Command, blocks, commands, page_blocks
from tests.support.transaction_calls import COMMIT, TransactionCalls, message, new_id
from tests.support.transcripts import NAMED, as_pattern, hide
from tests.support.waits import until

pytestmark = pytest.mark.slow

PORTS = {"producer": 9613, "consumer": 9713, "admin": 9813}
QUEUE = r"^\d(?=/\d+ key=)|(?<=queue )\d|(?<=orders/)\d"
CLIENT, PROCESS = r"\S+ \(127\.0\.0\.1:\d+\)", r"\b[\w-]+:\d{4,5}\b"
NUMBER = r"\d[\d,.]*\+?|–"  # or what stands in its place
DEAD = "TRANS_CHECK_MAX_TIME_TOPIC"
BLOCKED = (
    "topic create orders",
    "group set billing --topic orders --order-key KEY --start first",
    "send orders one two three --key a --queue 1",
    "pull orders --group billing --count 1 --fail 'ValueError: customer a has no address'",
)


@dataclass(frozen=True)
class PageScene:
    """What is prepared before a block, by `ddmq` commands or by a function, and what its words stand for."""

    before: tuple[str | Callable[[RealServer], None], ...] = ()
    words: dict[str, str | Callable[[RealServer], str]] = field(default_factory=dict)
    numbers: bool = True  # whether numbers in the output are compared
    timed: bool = False  # whether other lines may stand between those of the page, which may come later


def open_transactions(server: RealServer) -> None:
    """Two transactions that nobody has decided."""
    with contextlib.closing(TransactionCalls(server.ports["producer"])) as calls:
        for transaction in TRANSACTIONS:
            assert calls.prepare_when_owned(transaction, message("orders", b"17")).code == 0


def dead_transaction(server: RealServer) -> None:
    """A transaction whose topic is gone when it is committed, and back afterwards."""
    with contextlib.closing(TransactionCalls(server.ports["producer"])) as calls:
        transaction = new_id()
        assert calls.prepare_when_owned(transaction, message("orders", b"17")).code == 0
        assert server.request("DELETE", "/topics/orders")[0] == 200
        assert calls.end(transaction, COMMIT).code == 11
    server.admin("POST", "topics", "orders", body={"create": True})


def first_letter(group: str) -> Callable[[RealServer], str]:
    """Return what finds the offset of a group's first open dead letter."""
    return lambda server: str(server.admin("GET", "dlq", group)["shown"][0]["offset"])


TRANSACTIONS = (new_id(), new_id())
# By the page, and the first words of the block with which the scene begins, where that is not its first.
SCENES = {
    "docs/admin-api.md: curl -H 'Content-Type: application/json' http://127.0.0.1:9813/operations": PageScene(
        (*BLOCKED, "group skip billing a")
    ),
    "docs/metrics.md": PageScene(BLOCKED),
    "docs/dramatiq.md": PageScene(
        (
            "topic create dramatiq-default",
            "group set dramatiq-default --topic dramatiq-default --order-key KEY --start first",
            "send dramatiq-default x --key a",
            "pull dramatiq-default --group dramatiq-default --count 1 --fail no",
            "group skip dramatiq-default a",
        )
    ),
    "docs/delay.md": PageScene(("topic create reminders",)),
    "docs/delay.md: ddmq op plan": PageScene(("topic create mail", "delay add mail tea --delay 1h")),
    "docs/filters.md": PageScene(("topic create orders",)),
    "docs/from-rocketmq.md": PageScene(
        (
            "topic create parcels",
            "group set carrier --topic parcels --order-key KEY --start first --ordered-deliveries-max 1 "
            "--on-dead-letter park",
            "send parcels packed --key 17",
            "send parcels sent --key 17",
            "pull parcels --group carrier --count 1 --fail 'no address'",
        ),
        numbers=False,
    ),
    "docs/push.md": PageScene(("topic create orders",)),
    "docs/order-keys.md": PageScene(("topic create orders",)),
    "docs/operating-groups.md": PageScene(BLOCKED, numbers=False, timed=True),
    "docs/operating-groups.md: ddmq group keys": PageScene(BLOCKED, numbers=False),
    "docs/operating-groups.md: ddmq group set billing": PageScene(("topic create orders",)),
    "docs/retries.md": PageScene((*BLOCKED, "group skip billing a")),
    "docs/retries.md: ddmq group set billing --topic orders --order-key": PageScene(
        (
            "send orders 1 --key order-3",
            "group set billing --topic orders --order-key KEY --start first --ordered-deliveries-max 1 "
            "--on-dead-letter park",
            "pull orders --group billing --count 1 --fail no",
        )
    ),
    "docs/retries.md: ddmq dlq show": PageScene(
        (*BLOCKED, *["group skip billing a"] * 3), {"17": first_letter("billing")}
    ),
    "docs/retries.md: ddmq op plan": PageScene((*BLOCKED, "group skip billing a")),
    "docs/story.md": PageScene(
        (
            "topic create orders --queues 1",
            "topic set orders --trace-one-in 1",
            "group set billing --topic orders --order-key KEY --start first",
            "send orders one --key k",
            "send orders two --key k",
            "pull orders --group billing --count 1 --fail no",
            *["pull orders --group billing --count 1"] * 2,
        ),
        {"TOPIC": "orders", "KEY": "k"},
        numbers=False,
        timed=True,
    ),
    "docs/transactions.md": PageScene(
        ("topic create orders", open_transactions),
        {"show ID": TRANSACTIONS[0], "commit ID": TRANSACTIONS[0], "rollback ID": TRANSACTIONS[1]},
    ),
    "docs/transactions.md: ddmq dlq show": PageScene(
        ("topic create orders", dead_transaction), {"17": first_letter(DEAD)}
    ),
}


class Typist:
    """Types commands as a reader does, who replaces names in capital letters, and the id of an example."""

    def __init__(self, server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self._monkeypatch = monkeypatch
        self._last_id = ""
        self._last_plan = {"ID": "", "TOKEN": ""}
        self._scene = PageScene()

    def begin(self, scene: PageScene) -> None:
        """Delete everything, and prepare a scene."""
        self._scene = scene
        for group in {row["group"] for row in self.server.admin("GET", "groups")}:
            self.server.admin("DELETE", "groups", group)
        for topic in self.server.admin("GET", "topics"):
            self.server.admin("DELETE", "topics", topic["topic"])
        for step in scene.before:
            if callable(step):
                step(self.server)
            else:
                code, printed = self._run(shlex.split(step), {})
                assert code == 0, (step, printed)

    def type(self, command: Command) -> None:
        """Run a command, and compare what it prints if the page shows it."""
        fails = any(line.startswith("Error:") for line in command.output)
        outputs: list[str] = []

        def prints() -> bool:
            code, printed = self._run_any(command)
            outputs.append(printed)
            if command.output and not self._matches(command.output, printed):
                return False
            return (code != 0) == fails

        with contextlib.suppress(AssertionError):
            until(prints, seconds=PATIENCE_S if self._scene.timed else 0)
            return
        expected = "\n".join(command.output)
        printed = "\nand later\n".join(dict.fromkeys((outputs[0], outputs[-1])))
        pytest.fail(f"{command} prints\n{printed}\nand on the page\n{expected}")

    def _matches(self, expected: list[str], printed: str) -> bool:
        if self._scene.timed:  # a commit that begins and ends in one millisecond is no phase of a story
            expected = [line for line in expected if "the commit: written" not in line]
        patterns = [
            as_pattern("> ..." if line == "…" else self._hide(line).replace("…", "...")) for line in expected
        ]
        lines = [f"{self._hide(line)}\n" for line in printed.splitlines()]
        if not self._scene.timed:
            return re.fullmatch("".join(patterns), "".join(lines)) is not None
        rest = iter(lines)
        return all(any(re.fullmatch(pattern, line) for line in rest) for pattern in patterns)

    def _run_any(self, command: Command) -> tuple[int, str]:
        return (
            self._curl(command.typed) if command.words[0] == "curl" else self._run(*self._replaced(command))
        )

    def _replaced(self, command: Command) -> tuple[list[str], dict[str, str]]:
        """The words and the variables of a `ddmq` command, on this machine or in a pod."""
        start = command.words.index("ddmq")
        words = [
            self._replace(word, before)
            for before, word in zip(command.words[start:], command.words[start + 1 :], strict=False)
        ]
        return words, command.variables

    def _replace(self, word: str, before: str) -> str:
        if before == "start" or word == "TOKEN":
            return self._last_plan.get(word, word)
        words = self._scene.words
        example = self._last_id if word == "ID" or NAMED.fullmatch(word) else word
        replacement = words.get(f"{before} {word}", words.get(word, example))
        return replacement(self.server) if callable(replacement) else replacement

    def _run(self, words: list[str], variables: dict[str, str]) -> tuple[int, str]:
        printed = io.StringIO()
        with self._monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.StringIO("y\n"))
            for name, value in variables.items():
                patch.setenv(name, value)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = run(words)
        for match in NAMED.finditer(printed.getvalue()):
            self._last_id = match[0]
        self._note_plan(re.search(r"`ddmq op start (?P<ID>\w+) (?P<TOKEN>\w+)`", printed.getvalue()))
        return code, printed.getvalue()

    def _curl(self, line: str) -> tuple[int, str]:
        for component, port in PORTS.items():
            line = line.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.server.ports[component]}")
        for name, value in self._last_plan.items():
            line = re.sub(rf"(?<=/operations/){name}(?=/)|(?<=\"token\": \"){name}", value, line)
        if shutil.which("curl") is None:
            pytest.skip("needs curl")
        line = line.replace("curl ", "curl --fail-with-body --silent --show-error ", 1)
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self._note_plan(re.search(r'"id":"(?P<ID>\w+)".*"token":"(?P<TOKEN>\w+)"', result.stdout))
        return result.returncode, result.stdout + result.stderr

    def _note_plan(self, match: re.Match[str] | None) -> None:
        """Remember the id and the token of a plan, with which a later command starts it."""
        if match is not None:
            self._last_plan = match.groupdict()

    def _hide(self, line: str) -> str:
        line = NAMED.sub(lambda match: str(match.lastgroup), line)
        line = re.sub(PROCESS, "PROCESS", re.sub(CLIENT, "CLIENT", line))
        line = re.sub(QUEUE, "QUEUE", hide(line)).rstrip()
        return line if self._scene.numbers else re.sub(NUMBER, "N", line)


def list_run_commands(block: Block) -> list[Command]:
    return [command for command in commands(block) if class_of(command) is RUN]


def find_scene(block: Block, *, is_first: bool) -> PageScene | None:
    """Return the scene that begins with a block."""
    first = shlex.join(list_run_commands(block)[0].words)
    for start, scene in SCENES.items():
        page, _, words = start.partition(": ")
        if page == block.page and (first.startswith(words) if words else is_first):
            return scene
    return PageScene() if is_first else None


def list_run_blocks(page: str) -> list[Block]:
    return [block for block in page_blocks(page, "console", "sh") if list_run_commands(block)]


PAGES = sorted({block.page for block in blocks("console", "sh") if list_run_commands(block)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("console")) as started:
        yield started


@pytest.fixture
def typist(server: RealServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typist:
    for component, port in server.ports.items():
        monkeypatch.setenv(f"DDMQ_{component.upper()}", f"127.0.0.1:{port}")
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    return Typist(server, monkeypatch)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_do_what_the_page_says(page: str, typist: Typist) -> None:
    for number, block in enumerate(list_run_blocks(page)):
        scene = find_scene(block, is_first=number == 0)
        if scene is not None:
            typist.begin(scene)
        for command in list_run_commands(block):
            typist.type(command)


def test_every_scene_is_used() -> None:
    scenes = [
        find_scene(block, is_first=number == 0)
        for page in PAGES
        for number, block in enumerate(list_run_blocks(page))
    ]
    assert [start for start, scene in SCENES.items() if not any(scene is other for other in scenes)] == []
