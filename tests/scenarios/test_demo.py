"""`ddmq demo` proves what it says, and what it shows behind $ can be typed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from ddmq.cli.root import run
from tests.scenarios.real_server import RealServer, ddmq_command

PATIENCE_S = 600.0
TYPED = (
    "topic create", "group create", "lag", "topic create", "group set", "group keys", "dlq list",
    "dlq show", "dlq resend", "group keys", "lag",
)  # fmt: skip


def fact(output: str, name: str, act: int) -> str:
    """What act 1 or 2 says of a name."""
    return str(re.findall(rf"^  {name} +(.*)$", output, re.MULTILINE)[act - 1])


def number(text: str) -> int:
    """The first one in `2,418 of 2,418 files`."""
    return int(text.split()[0].replace(",", ""))


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 30)
def test_the_demo_proves_and_its_commands_are_true(
    server: RealServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    result = subprocess.run(
        ddmq_command("demo", "--verbose", "--report", str(page)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    output = result.stdout
    assert result.returncode == 0, output + result.stderr
    assert "every acknowledged file arrived intact" in output
    assert "sent = acknowledged = finished, each module in order" in output
    assert (fact(output, "lost", 1), fact(output, "lost", 2)) == ("0", "0")
    assert fact(output, "not alone", 1).startswith("0 began")
    assert '"json"' in output
    assert "broken on purpose" in output
    assert re.search(r"^resent \d+ to modules, for group \S+ alone$", output, re.MULTILINE)
    assert "the report's numbers are those the demo counted" in output
    assert f"open it: {page}" in output
    findings = "".join(re.findall(r'class="verdict bad">.*?</ul>', page.read_text()))
    assert not re.search("ended without a word|dead letter|blocked|not stored", findings), "that was staged"
    assert "While json was blocked, the other keys went on." in page.read_text()
    tiles = dict(re.findall(r'"tile"><span class="soft">([^<]+)</span><b>([^<]+)</b>', page.read_text()))
    finished, died = number(fact(output, "acknowledged", 2)), number(fact(output, "dead letters", 1))
    assert number(tiles["dead letters"]) == died
    assert number(tiles["acknowledged"]) >= 2 * finished

    commands = re.findall(r"^\$ ddmq (.*)$", output, re.MULTILINE)
    assert len(commands) == len(TYPED)
    assert all(command.startswith(words) for command, words in zip(commands, TYPED, strict=True))
    exported = re.findall(r"DDMQ_([A-Z]+)=\S+", re.findall(r"^\$ export (.*)$", output, re.MULTILINE)[0])
    for name in exported:
        monkeypatch.setenv(f"DDMQ_{name}", f"127.0.0.1:{server.ports[name.lower()]}")
    for command in commands:
        if not command.startswith(("dlq show", "dlq resend")):  # nothing died at this server
            assert run(shlex.split(command)) == 0, command


@pytest.mark.long
@pytest.mark.timeout(PATIENCE_S + 30)
def test_without_verbose_the_demo_fits_one_screen(tmp_path: Path) -> None:
    result = subprocess.run(
        ddmq_command("demo", "--report", str(tmp_path / "report.html")),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100 + len(str(tmp_path))
    verdicts = [line for line in lines if line.startswith(("✓", "✗"))]
    expected = (
        "killed with kill -9", "nothing was lost", "order kept: 0 of", "the other keys went on",
        "dead letters", "all proven",
    )  # fmt: skip
    for line, words in zip(verdicts, expected, strict=True):
        assert line.startswith("✓ ")
        assert words in line
    assert lines[-1] == verdicts[-1]
    rows = {line.split()[0]: line for line in lines if "┃" in line}
    assert "✗" in rows["json"]
    assert len(rows) >= 8
    assert all("█" in row for row in rows.values())
    assert sum("▼ kill -9" in line for line in lines) == 1
