"""Report → one HTML file that needs nothing else: the charts' script, styles and data are inside.

A content security policy in the file forbids every request, so opening it never touches a network.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from metrics_job.report import sections
from metrics_job.report.core import words
from metrics_job.report.core.facts import Report
from metrics_job.report.core.figures import figures

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(report: Report, made_ms: int) -> str:
    """The file's text; `made_ms`, when it was made, stands in its foot. Raises ImportError without plotly."""
    drawn = figures(report)
    title = "ddmq report"
    if report.covered:
        title += f", {words.between(*report.covered)}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_text('page.css')}</style></head><body><main>",
            sections.head(report),
            '<div class="grid">',
            *sections.cards(report, drawn),
            "</div>",
            sections.foot(made_ms),
            "</main>",
            *(_scripts(drawn) if drawn else ()),
            "</body></html>",
        ]
    )


def _scripts(drawn: dict[str, Any]) -> list[str]:
    from plotly.offline import get_plotlyjs

    return [
        f'<script type="application/json" id="figures">{_json(drawn)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{_text('page.js')}</script>",
    ]


def _json(value: Any) -> str:
    """JSON that cannot end the script it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(name: str) -> str:
    return files("metrics_job.report").joinpath(name).read_text(encoding="utf-8")
