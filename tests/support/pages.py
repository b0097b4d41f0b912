"""The fenced blocks of README.md and docs/ and their commands, for every test that runs or checks them.

A block of the language `console` shows what a terminal shows: commands behind `$ `, and below each what it
prints. In a block of the language `sh` each line is a command. A command may go on behind `\\` at the end of
its line, or until its quotes are closed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
OPERATORS = {"&&", "|", ";", "&"}
REDIRECTION = re.compile(r"\d?>")
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One simple command of a block: its words, the variables before them, and the output below it.

    `typed` is the whole line, with commands before and behind it; output belongs to the last of them.
    """

    block: Block
    typed: str
    variables: dict[str, str]
    words: tuple[str, ...]
    output: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.block}: {shlex.join(self.words)}"


@cache
def blocks(*languages: str) -> tuple[Block, ...]:
    """Return the blocks of all pages in these languages; without one, every block."""
    all_blocks = [
        block for page in PAGES for block in read_blocks(page, (ROOT / page).read_text(encoding="utf-8"))
    ]
    return tuple(block for block in all_blocks if not languages or block.language in languages)


def page_blocks(page: str, *languages: str) -> list[Block]:
    """Return the blocks of one page, in order."""
    return [block for block in blocks(*languages) if block.page == page]


def read_blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks in a page's text."""
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        lines = [each.removeprefix(match["indent"]) for each in match["text"].splitlines()]
        yield Block(page, line, match["language"].strip(), "\n".join([*lines, ""]))


def commands(block: Block) -> Iterator[Command]:
    """Yield the simple commands of a `console` or `sh` block, without comments and redirections."""
    typed, exported = "", dict[str, str]()
    for line, output in _typed_lines(block):
        line, typed = typed + line, ""
        try:
            tokens = _tokens(line)
        except ValueError:  # a quote is not closed yet
            typed = f"{line}\n"
            continue
        simple = [_simple(words) for words in _split(tokens)]
        for number, (variables, words) in enumerate(simple, 1):
            if words[0] == "export":
                exported |= variables
            yield Command(block, line, exported | variables, words, output if number == len(simple) else [])
    assert not typed, f"{block}: a quote is not closed: {typed}"


def _typed_lines(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield what is typed at each prompt, or in each line of `sh`, and the output."""
    text = block.text.replace("\\\n", "")
    if block.language == "sh":
        yield from ((line, []) for line in text.splitlines())
        return
    for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        typed, *output = entry.splitlines()
        yield typed, output


def _tokens(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    return list(lexer)


def _split(tokens: list[str]) -> Iterator[list[str]]:
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token not in OPERATORS:
            words.append(token)
        elif words:
            yield words
            words = []


def _simple(words: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return variables and words of a simple command, without the redirection of its output."""
    words = words[: next((at for at, word in enumerate(words) if REDIRECTION.match(word)), len(words))]
    if words[0] == "export":
        return dict(word.split("=", 1) for word in words[1:]), ("export",)
    count = next((at for at, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    return dict(word.split("=", 1) for word in words[:count]), tuple(words[count:])
