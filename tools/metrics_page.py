"""Write docs/metrics.md from the catalogue; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from ddmq_common.metrics.catalogue import CATALOGUE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = """# Metrics

Made from `ddmq_common/metrics/catalogue.py` by `python tools/metrics_page.py`. Shown in Prometheus'
text format at `http://ADMIN/metrics`. Counters count from the start of their process. Histograms
are in µs, with buckets of at most 12.5 % width inside and powers of two on the page. Labels are
bounded: past 10,000 label sets of one metric, new ones share the label "other".

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '–'} | {metric.help} |"
        for metric in CATALOGUE.values()
    )
    return HEAD + "\n".join(rows) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("metrics: the page is up to date" if fresh else "metrics: run `python tools/metrics_page.py`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
