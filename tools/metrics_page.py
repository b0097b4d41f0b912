"""Write docs/metrics.md from the catalogue; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from ddmq_common.metrics.catalogue import CATALOGUE, Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = """# Metrics

Made from `ddmq_common/metrics/catalogue.py` by `python tools/metrics_page.py`. Shown in Prometheus'
text format at `http://ADMIN/metrics`. Counters count from the start of their process. Histograms
have buckets of at most 12.5 % width inside and powers of two on the page, whatever their unit. Labels
are bounded: past 10,000 label sets of one metric (1,000 of a histogram), new ones share the label
"other". A topic or group label is always the name of one that exists or existed, never what a client
wrote; refusals that belong to none count under the topic `-`.

Units: `us` and `ms` are times, `bytes` sizes, `1` a flag or a state; without one it is a plain count.

| metric | kind | unit | labels | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(_row(metric) for metric in CATALOGUE.values()) + "\n"


def _row(metric: Metric) -> str:
    cells = (
        f"`{metric.name}`",
        metric.kind,
        metric.unit or "–",
        ", ".join(metric.labels) or "–",
        metric.help,
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    if "--check" in sys.argv:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("metrics: the page is up to date" if fresh else "metrics: run `python tools/metrics_page.py`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
