"""Write docs/metrics.md from the catalogue; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
HEAD = """# Metrics

Made from `ddmq_common/metrics/catalogue.py` by `python tools/metrics_page.py`. Shown in Prometheus'
text format at `http://ADMIN/metrics`. Counters count from the start of their process. Histograms
have buckets of at most 12.5 % width inside and powers of two on the page, whatever their unit. Labels
are bounded: past 10,000 label sets of one metric (1,000 of a histogram), new ones share the label
"other". A topic or group label is always the name of one that exists or existed, never what a client
wrote; refusals that belong to none count under the topic `-`.

A histogram that has seen nothing yet is not on the page. Gauges that have to be computed are filled in when
somebody looks, at most once a second.

**Lag** and its neighbours are told by the proxy that holds a subscription's queues; over several
proxies they add up (of ages and spans take the highest). Of what nobody pulls from one of the
proxies tells, which asks every 5 s who holds it; until the answer is there the last numbers stay. The
age is that of the message at the committed offset; with more than 64 queues that lag and move, some
ages show an earlier message for a look or two, so too high rather than too low. A redelivery is
counted where this proxy knows that the message failed or timed out, or took a step of the retry path;
one that comes again because its proxy died is not.

**Late acknowledgements** are `ddmq_results_ignored_total` with the reason `late`, **limits** that
refused are `ddmq_send_refused_total` (`rate`, `inflight_requests`, …), **cancelled** delay messages
are `ddmq_delay_orders_total` with the outcome `cancelled`, **stored** messages `ddmq_sends_total`
with the code 0.

**What it costs** (the best of many runs, one core): 0.3 µs a send, 1.3 µs an answer to a pull, 0.4
µs a result, 0.6 µs a group commit, 1 µs a turn of the event loop; a look 20 µs a subscription held,
the page about 60 µs a subscription, in pieces of 1 to 2 ms. `ddmq bench t15` measures it on the
loads of T1 and T3.

Units: `us` and `ms` are times, `bytes` sizes, `1` a flag or a state; without one it is a plain count.
Times are told in `us` and `ms`, not in Prometheus' seconds: these names are promised to dashboards, rules and
tables that use them, so they stay.

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
