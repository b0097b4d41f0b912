"""A terminal that a command writes to: what really reaches it, before any program for people reads it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence

import pytest

from ddmq.cli.root import run

COLUMNS = 400
OWN_SEQUENCES = re.compile(
    r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AKG]|\x1b\[2K"
)  # colours; what redraws a line


class Terminal:
    """Runs commands in this process, their output on a pseudo terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(COLUMNS))

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and everything that was written to the terminal."""
        parent_end, child_end = os.openpty()
        output = bytearray()
        reader = threading.Thread(target=_drain, args=(parent_end, output))
        reader.start()
        try:
            code = self._run(arguments, child_end)
        finally:
            os.close(child_end)
            reader.join(30)
            os.close(parent_end)
        return code, output.decode().replace("\r\n", "\n")

    def _run(self, arguments: Sequence[str], terminal: int) -> int:
        with (
            open(os.dup(terminal), "w", encoding="utf-8") as out,
            open(os.dup(terminal), "w", encoding="utf-8", buffering=1) as err,
            self._monkeypatch.context() as patched,
        ):
            patched.setattr("sys.stdout", out)
            patched.setattr("sys.stderr", err)
            return run(arguments)


def _drain(terminal: int, output: bytearray) -> None:
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # nobody has the other end any more
            return
        if not chunk:
            return
        output += chunk


def acts(written: str) -> list[str]:
    """What a terminal or a reader's eye would act on, beside this project's own colours and lines."""
    rest = OWN_SEQUENCES.sub("", written)
    control_characters = re.findall(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", rest
    )
    return sorted(set(control_characters)) + [line for line in rest.split("\n") if line.startswith("FORGED")]
