"""Write docs/metrics.md from the catalogue; `--check` only says whether it is up to date."""

import sys
import textwrap
from pathlib import Path

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
WIDTH = 120
HEAD = """# Metrics

Every process shows its metrics in Prometheus' text format at `http://ADMIN/metrics`:

```console
$ curl -s http://127.0.0.1:9813/metrics | grep ddmq_lag
```

This page lists all of them, with kind, unit and labels. A Grafana dashboard and alert rules are ready to
load ([alerts.md](alerts.md)). `python tools/metrics_page.py` makes this page from
`ddmq_common/metrics/catalogue.py`.

## How to read them

* **Counters** count from the start of their process.
* **Histograms** have buckets of at most 12.5 % width inside, and powers of two on the page, whatever their
  unit. A histogram without observations is not on the page.
* **Gauges** that must be computed are computed on request, at most once a second.
* **Units**: `us` and `ms` are times, `bytes` sizes, `1` a flag or a state; a metric without a unit is a
  plain count. Times are in `us` and `ms`, not in Prometheus' seconds: dashboards, rules and tables use
  these names, so they do not change.
* **Labels** are bounded: past 10,000 label sets of one metric (1,000 of a histogram), new ones share the
  label "other". A topic or group label is always the name of one that exists or existed, never text from a
  client; rejections that belong to none count under the topic `-`.
* **Lag** and the related gauges are reported by the proxy that holds a subscription's queues. Over several
  proxies they add up (for ages and spans take the highest). Queues without an owner are reported by one
  proxy, which checks every 5 s for an owner; until then the last values remain. The age is that of the
  message at the committed offset. With more than 64 queues that lag and move, some ages show an earlier
  message for a check or two, so too high rather than too low.
* **Redeliveries** are counted if this proxy knows that the message failed or timed out, or took a step of
  the retry path. A message that comes again because its proxy died is not counted.

| looking for | metric |
|---|---|
| stored messages | `ddmq_sends_total` with the code 0 |
| limits that rejected sends | `ddmq_send_refused_total` (`rate`, `inflight_requests`, …) |
| late acknowledgements | `ddmq_results_ignored_total` with the reason `late` |
| cancelled delay messages | `ddmq_delay_orders_total` with the outcome `cancelled` |

**What they cost** (the best of many runs, one core): 0.3 µs a send, 1.3 µs an answer to a pull, 0.4 µs a
result, 0.6 µs a group commit, 1 µs an iteration of the event loop. A check costs 20 µs for each subscription
held, the page about 60 µs for each subscription, in steps of 1 to 2 ms. `ddmq bench t15` measures it on the
loads of T1 and T3.

## All metrics

"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_entry(metric) for metric in CATALOGUE.values())


def _entry(metric: Metric) -> str:
    kind = f"{metric.kind} in {metric.unit}" if metric.unit not in ("", "1") else metric.kind
    labels = f"; by {', '.join(metric.labels)}" if metric.labels else ""
    text = f"`{metric.name}` ({kind}{labels}): {metric.help}"
    lines = textwrap.wrap(text, WIDTH - 2, break_on_hyphens=False, break_long_words=False)
    return "* " + "\n  ".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("metrics: the page is up to date" if fresh else "metrics: run `python tools/metrics_page.py`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
