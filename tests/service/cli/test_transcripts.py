"""Sessions of the command line as text: commands, and what they print word for word (docs/testing.md).

After each command stand its standard output behind `>`, its standard error behind `!`, and its exit code
where it is not 0; three dots are any text, or any lines. `until` before a command repeats it until it prints
what stands there. `| a b.c` behind one that prints JSON shows these fields, a line for each document or row.
Ids, times, durations, rates and addresses have names, those of ids may stand in a command.
`--update-transcripts` writes what is printed now where that is something else.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ddmq.cli.messages import sending
from ddmq.cli.root import run
from tests.service.cli.conftest import Shell
from tests.support.transcripts import NAMED, as_pattern, hide
from tests.support.waits import PATIENCE_S, until

FOLDER = Path(__file__).parent / "transcripts"


class Session:
    """Plays the commands of a file; names what differs from run to run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._names: dict[str, str] = {}  # by what is printed

    def play(self, line: str, expected: list[str]) -> list[str]:
        """What a command prints; `expected` as soon as it does, where the line begins with until."""
        command, printed = line.removeprefix("until "), ""
        pattern = re.compile("".join(map(as_pattern, expected)))

        def prints() -> bool:
            nonlocal printed
            printed = "".join(f"{each}\n" for each in self._printed(command))
            return pattern.fullmatch(printed) is not None

        if command == line:
            return expected if prints() else printed.splitlines()
        with suppress(AssertionError):
            until(prints)
        return expected if pattern.fullmatch(printed) else printed.splitlines()

    def _printed(self, command: str) -> Iterator[str]:
        for raw, name in self._names.items():
            command = re.sub(rf"\b{name}\b", raw, command)
        command, _, fields = command.partition(" | ")
        code = run(shlex.split(command)[1:])
        captured = self._capsys.readouterr()
        out = chosen(captured.out, fields.split()) if fields and captured.out else captured.out.splitlines()
        yield from (f"> {self._hide(each)}".rstrip() for each in out)
        yield from (f"! {self._hide(each)}".rstrip() for each in captured.err.splitlines())
        if code:
            yield f"> exit code {code}"

    def _hide(self, text: str) -> str:
        return hide(NAMED.sub(self._name, text))

    def _name(self, match: re.Match[str]) -> str:
        """The same for the same id, counted from 1."""
        kind = str(match.lastgroup)
        count = sum(name.startswith(kind) for name in self._names.values())
        return self._names.setdefault(match[0], f"{kind}-{count + 1}")


def chosen(text: str, fields: list[str]) -> Iterator[str]:
    """The fields of each document, or of each row of a list."""
    for line in text.splitlines():
        document = json.loads(line)
        for row in document if isinstance(document, list) else [document]:
            yield " ".join(json.dumps(value_of(row, field), ensure_ascii=False) for field in fields)


def value_of(row: Any, path: str) -> Any:
    """One value, null where it is absent, or a list of them where the path goes through a list."""
    name, _, rest = path.partition(".")
    value = row.get(name)
    if not rest:
        return value
    return [value_of(each, rest) for each in value] if isinstance(value, list) else value_of(value, rest)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.iterdir()))
def test_a_session_prints_what_its_transcript_says(
    shell: Shell,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setattr(sending, "PATIENCE_S", PATIENCE_S)  # a busy machine is no reason to say more
    path = FOLDER / f"{name}.txt"
    text = path.read_text(encoding="utf-8")
    session, played = Session(capsys), []
    for block in re.findall(r"^(?!>|!)(.*)\n((?:[>!].*\n)*)", text, re.MULTILINE):
        line, outcome = block
        played.append(line)
        if line and not line.startswith("#"):
            played += session.play(line, outcome.splitlines())
    transcript = "\n".join(played) + "\n"
    if request.config.getoption("--update-transcripts"):
        path.write_text(transcript, encoding="utf-8")
    assert transcript == text
