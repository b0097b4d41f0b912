"""The commands of the README and of the first steps, one after the other, while a consumer fails key 17."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ddmq.cli.root import root, run
from ddmq_client import Consumer, Message
from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.waits import until

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()
FIRST_STEPS = (REPOSITORY / "docs" / "first-steps.md").read_text()


def commands(page: str) -> list[str]:
    """Return the commands of a page's console blocks, without those that start servers or the demo."""
    blocks = "\n".join(re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    blocks = blocks.replace("\\\n", "")
    lines = re.findall(r"^\$ ddmq (.*)$", blocks, re.MULTILINE)
    return [line for line in lines if not line.startswith(("serve", "demo"))]


def fail_17(message: Message) -> None:
    if message.key == "17":
        raise ValueError("order 17 has no address")


def blocked(server: RealServer, group: str) -> bool:
    found = server.admin("GET", "groups", group, "keys")
    return any(key["key"] == '"17"' and key["attempts"] > 0 for key in found)


def delay_id(server: RealServer) -> str:
    """Return the id of the delayed message that is due first."""
    return str(server.admin("GET", "delay", "messages")["messages"][0]["id"])


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path) as server:
        for part, port in server.ports.items():
            monkeypatch.setenv(f"DDMQ_{part.upper()}", f"127.0.0.1:{port}")
        for line in commands(README):
            assert run(shlex.split(line, comments=True)) == 0, line
    assert re.search(r"^\d/0 key=17  order 17: two boxes\n", capsys.readouterr().out, re.M)


@pytest.mark.slow
def test_the_commands_of_the_first_steps_do_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = commands(FIRST_STEPS)
    assert {"group keys shipping", "dlq show shipping", "lag"} <= {
        line.split(" #")[0].strip() for line in typed
    }
    with running(tmp_path) as server:
        for part, port in server.ports.items():
            monkeypatch.setenv(f"DDMQ_{part.upper()}", f"127.0.0.1:{port}")
        consumer = Consumer(f"127.0.0.1:{server.ports['consumer']}", "shipping", ["orders"], handler=fail_17)
        try:
            for line in typed:
                if line.startswith("group keys"):
                    consumer.start()
                    until(lambda: blocked(server, "shipping"), "key 17 is blocked")
                words = shlex.split(line, comments=True)
                code = run([delay_id(server) if word == "ID" else word for word in words])
                said = capsys.readouterr()
                assert code == 0, (line, said)
                if line.startswith("group keys"):
                    assert "order 17 has no address" in said.out
                if line.startswith("dlq show"):
                    assert "skipped" in said.out
        finally:
            consumer.stop()


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "group"), [(README, "shipping"), (FIRST_STEPS, "billing")], ids=["README", "first steps"]
)
def test_its_python_prints_its_message_on_a_fresh_server(page: str, group: str, tmp_path: Path) -> None:
    block = python_blocks(page)[0]
    with running(tmp_path) as server:
        for part, port in (("producer", 9613), ("consumer", 9713)):
            block = block.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[part]}")
        output = tmp_path / "output"
        with output.open("w") as stdout:
            program = subprocess.Popen(
                [sys.executable, "-u", "-c", block],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            until(lambda: "order 17: two boxes\n" in output.read_text(), "its message is handled")
            until(lambda: lag(server, group) == 0, "its message is acknowledged")
            _, errors = program.communicate("\n", timeout=PATIENCE_S)
        finally:
            program.kill()
    assert (program.returncode, errors) == (0, "")


def lag(server: RealServer, group: str) -> int | None:
    """How many messages the group has not finished; None before there is one."""
    rows = [row for row in server.admin("GET", "lag") if row["group"] == group]
    return sum(row["lag"] for row in rows) if rows else None


def test_its_links_and_its_python_are_whole() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert (REPOSITORY / link).exists(), link
    for block in python_blocks(README):
        ast.parse(block)


def test_every_page_of_docs_is_found_from_the_readme() -> None:
    docs = REPOSITORY / "docs"
    found = set(re.findall(r"\(docs/([^)#/]+\.md)", README))
    for page in ("README.md", "architecture.md", "formats.md"):
        found |= set(re.findall(r"\(([^)#/]+\.md)", (docs / page).read_text()))
    assert {page.name for page in docs.glob("*.md")} <= found


def stranger(line: str) -> str:
    """What of a command line is none of ours."""
    command: click.Command = root
    words = shlex.split(line, comments=True)
    while isinstance(command, click.Group) and words and not words[0].startswith(("…", "COMMAND", "--")):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        if found is None:
            return name
        command = found
    known = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    return " ".join(word for word in words if word.startswith("--") and word not in known)


def test_commands_and_options_that_the_pages_show_exist() -> None:
    shown = re.compile(r"`ddmq ([^`\n]+)`|^(?:\$ |    )ddmq ((?:.*\\\n)*.*)$", re.MULTILINE)
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")):
        lines = ["".join(found) for found in shown.findall(page.read_text())]
        assert {line: stranger(line) for line in lines if stranger(line)} == {}, page
