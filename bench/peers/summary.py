"""The results of queues.py and delays.py as tables and as one picture, bars in an SVG file.

Twenty lines draw bars; a library for charts would bring a browser or forty megabytes for them.
"""

from __future__ import annotations

import json
import statistics
from html import escape
from pathlib import Path
from typing import NamedTuple

from bench.harness import RESULTS, figure

PICTURE = "peers.svg"
FILES = ("queue_peers", "delay_peers")
WIDTH, NAMES, FIGURES, LINE = 860, 260, 110, 22
DDMQ_COLOUR, PEER_COLOUR = "#2f6f4f", "#9aa5b1"


class Drawn(NamedTuple):
    """A group of bars."""

    title: str
    work: str  # the end of its series' names
    figure: str


DRAWN = (
    Drawn("sends a second, one message a call, durable", "one a call", "per_s"),
    Drawn("messages a second, 100 a call, durable", "100 a call", "per_s"),
    Drawn("messages a second, pulled and acknowledged", "pull and ack", "per_s"),
    Drawn("lateness of delayed messages, p99 in ms: less is better", "evenly", "p99_ms"),
    Drawn("messages a second of those due at one moment", "storm", "per_s"),
)


def medians(folder: Path = RESULTS) -> dict[str, dict[str, float]]:
    """Figure → median, by the names of all series of both files that are there."""
    by_series: dict[str, dict[str, float]] = {}
    for name in FILES:
        path = folder / f"{name}.json"
        series = json.loads(path.read_text())["series"] if path.exists() else {}
        for each, result in series.items():
            rounds = result["rounds"]
            by_series[each] = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    return by_series


def tables(by_series: dict[str, dict[str, float]]) -> str:
    """One table a work, as markdown: every figure of every system."""
    blocks = []
    for work in dict.fromkeys(name.rpartition(", ")[2] for name in by_series):
        rows = {name: figures for name, figures in by_series.items() if name.endswith(f", {work}")}
        keys = list(next(iter(rows.values())))
        lines = [f"| {work} | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
        for name, figures in rows.items():
            cells = " | ".join(figure(figures[key]) for key in keys)
            lines.append(f"| {name.rpartition(', ')[0]} | {cells} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def picture(by_series: dict[str, dict[str, float]]) -> str:
    """An SVG file's text."""
    elements, y = [], LINE
    for group in DRAWN:
        rows = {
            name.rpartition(", ")[0]: figures[group.figure]
            for name, figures in by_series.items()
            if name.endswith(f", {group.work}")
        }
        elements.append(f'<text x="0" y="{y}" font-weight="bold">{escape(group.title)}</text>')
        for name, value in rows.items():
            y += LINE
            length = value / max(rows.values()) * (WIDTH - NAMES - FIGURES)
            colour = DDMQ_COLOUR if name == "ours" else PEER_COLOUR
            elements += [
                f'<text x="{NAMES - 8}" y="{y}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{NAMES}" y="{y - 13}" width="{length:.1f}" height="16" fill="{colour}"/>',
                f'<text x="{NAMES + length + 6:.1f}" y="{y}">{figure(value)}</text>',
            ]
        y += 2 * LINE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}"'
    style = ' font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
    return head + style + "\n".join(elements) + "\n</svg>\n"
