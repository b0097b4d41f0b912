"""What the demo prints: little for a newcomer, everything with --verbose."""

from __future__ import annotations

import click
import pytest

from ddmq.address import HostPort
from ddmq.demo.server import Narrator, Typed

ADDRESSES = {component: HostPort("127.0.0.1", 9) for component in ("producer", "consumer", "admin")}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for component in ADDRESSES:
        monkeypatch.setenv(f"DDMQ_{component.upper()}", "")


def print_all(narrator: Narrator) -> None:
    narrator.print_short("short")
    narrator.print_step("step")
    narrator.print_facts({"lost": "0"})
    typed = Typed(narrator)
    typed.use_server(ADDRESSES)
    typed("completion bash")


@pytest.mark.slow  # it looks for the shell's completion
def test_without_verbose_only_the_short_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_all(Narrator(verbose=False))
    assert capsys.readouterr() == ("  short\n", "")


@pytest.mark.slow  # it looks for the shell's completion
def test_with_verbose_all_but_the_short_lines_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_all(Narrator(verbose=True))
    text = capsys.readouterr().out
    assert "short" not in text
    for component in (
        "[demo] step",
        "  lost           0",
        "$ export DDMQ_PRODUCER=127.0.0.1:9",
        "$ ddmq completion bash",
    ):
        assert component in text


def test_a_command_that_fails_says_why_even_if_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    typed = Typed(Narrator(verbose=False))
    with pytest.raises(click.ClickException, match=r"exit code 2(.|\n)*No such command 'nope'"):
        typed("nope")
    assert capsys.readouterr() == ("", "")
