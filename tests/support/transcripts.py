"""What a command prints, compared word for word but for what differs from run to run.

Sessions of the command line (tests/service/cli/test_transcripts.py) and the output on pages
(tests/scenarios/test_docs_console.py) are compared in this way.
"""

from __future__ import annotations

import re

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
NAMED = re.compile(
    rf"(?P<DELAY>\d{{10}}-\d(?:-\d+){{5}}-{UUID})|(?P<UUID>{UUID})|(?P<MS>\b1[6-9]\d{{11}}\b)"
    r"|(?P<ID>\b(?!0{32})[0-9a-f]{32}\b)"
)
STATED = "(?<!every )(?<!least )(?<!is )"  # not measured
HIDDEN = {
    r"/\S+/conf/": "CONF/",
    r"(?<!like )(?!2030)\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?": "TIME",
    r"127\.0\.0\.1:\d{5}": "ADDRESS",
    rf"{STATED}\b\d[\d,]* (d|h|m)( \d+ (h|m|s))?\b|{STATED}\b\d[\d.,]* (s|ms|µs)\b": "DURATION",
    r"\b[\d,]+/s\b": "RATE",
}


def hide(text: str) -> str:
    """Replace times, durations, rates and addresses by their kinds, and long gaps and rules by short ones."""
    for pattern, name in HIDDEN.items():
        text = re.sub(pattern, name, text)
    return re.sub("  +|─+", lambda gap: gap[0][:2], text)


def as_pattern(line: str) -> str:
    """Matches the line; three dots stand for any text, and for any lines where they stand alone."""
    return r"(.*\n)*" if line == "> ..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
