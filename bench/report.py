"""The results under bench/results/ as one markdown table: medians, spread, ratio to the floor.

`python -m bench.report`; `ddmq bench all` prints it at its end.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, figure

HEAD = "| | series | figure | reach | median | spread | of its floor |\n|---|---|---|---|---|---|---|"


def table(folder: Path = RESULTS) -> str:
    """One row per series, its main figure first, the others behind it."""
    rows = [row for path in sorted(folder.glob("t*.json")) for row in rows_of(path)]
    return "\n".join([HEAD, *rows])


def rows_of(path: Path) -> list[str]:
    """Of one benchmark's file."""
    result = json.loads(path.read_text())
    series: dict[str, Any] = result["series"]
    short = path.stem.partition("_")[0].upper().replace("T0", "T")
    return [_row(short, name, one, series.get(one["floor"] or "")) for name, one in series.items()]


def _row(short: str, name: str, one: dict[str, Any], floor: dict[str, Any] | None) -> str:
    columns: dict[str, list[float]] = {key: [r[key] for r in one["rounds"]] for key in one["rounds"][0]}
    main = next(iter(columns))
    median = statistics.median(columns[main])
    ratio = ""
    if floor is not None:
        below = statistics.median(next(iter(each.values())) for each in floor["rounds"])
        ratio = f"{median / below:.2f}" if below else ""
    others = ", ".join(f"{key} {figure(statistics.median(values))}" for key, values in columns.items())
    spread = f"{figure(min(columns[main]))}–{figure(max(columns[main]))}"
    rest = others.partition(", ")[2]
    shown = f"{figure(median)}" + (f" ({rest})" if rest else "")
    return f"| {short} | {name} | {main} | {one['reach']} | {shown} | {spread} | {ratio} |"


def machine_line(folder: Path = RESULTS) -> str:
    """What the newest results were measured on."""
    results = [json.loads(path.read_text()) for path in folder.glob("t*.json")]
    if not results:
        return "no results"
    newest = max(results, key=lambda result: str(result["at"]))
    return f"{newest['at']}, " + ", ".join(f"{key} {value}" for key, value in newest["machine"].items())


def main() -> None:
    print(machine_line() + "\n")
    print(table())


if __name__ == "__main__":
    main()
