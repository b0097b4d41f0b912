"""Write docs/metrics.md from the catalogue; `--check` only says whether it is up to date."""

import sys
import textwrap
from pathlib import Path

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.metric import Metric

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
WIDTH = 120
HEAD = """# Metrics

Every process serves its metrics in Prometheus' text format at `http://ADMIN/metrics`:

```console
$ curl -s http://127.0.0.1:9813/metrics | grep ddmq_lag
```

This page lists all metrics, including their kinds, units and labels. For a ready-made Grafana dashboard and
alert rules, see [alerts.md](alerts.md). This page is generated from `ddmq_common/metrics/catalogue.py`
by the command `python tools/metrics_page.py`.

## How to read them

* **Counters** start at 0 when their process starts.
* **Histograms** are kept in buckets with a relative width of at most 12.5 %. At `/metrics`, however, the
  bucket limits are powers of two regardless of the unit, and histograms without observations are omitted.
* **Gauges** whose values have to be calculated are updated when `/metrics` is requested, but at most once
  a second.
* **Units** are `us` and `ms` for times, `bytes` for sizes, and `1` for flags and states. A metric
  without a unit is a plain count. Unlike most Prometheus metrics, ddmq's metrics do not use seconds as
  the unit of time. The names of the metrics will not change, because dashboards, rules and tables depend
  on them.
* **Labels** are limited: once a metric has 10,000 label sets (1,000 for a histogram), all further label
  sets are combined under the label "other". A topic or group label is always the name of a topic or
  group that exists or once existed, never arbitrary text from a client. Rejections without a topic are
  counted under the topic `-`.
* **Lag** and the related gauges are reported by the proxy that holds a subscription's queues. If there
  are several proxies, add up their values (for ages and ack spans, use the highest value). The lag of
  queues without an owner is reported by a single proxy, which looks for such queues every 5 s and
  reports the same values until the next check. The lag age is the age of the message at the committed
  offset. If the lag of more than 64 queues is changing, some lag ages may refer to an earlier message
  for one or two checks; such ages are too high, never too low.
* **Redeliveries** are counted by a proxy if the message has failed, timed out, or entered a step of the
  retry path at that proxy. Redeliveries that occur because a proxy died are not counted.

| quantity | metric |
|---|---|
| stored messages | `ddmq_sends_total` with the code 0 |
| limits that rejected sends | `ddmq_send_refused_total` (`rate`, `inflight_requests`, …) |
| late acknowledgements | `ddmq_results_ignored_total` with the reason `late` |
| cancelled delayed messages | `ddmq_delay_orders_total` with the outcome `cancelled` |

**Cost:** Updating the metrics takes 0.3 µs per send, 1.3 µs per pull reply, and 0.4 µs per result. Each
group commit adds another 0.6 µs, and each iteration of the event loop adds 1 µs. These costs are the
lowest values from many runs on one core. Each lag check takes 20 µs per subscription that the proxy
holds. A request for `/metrics` takes about 60 µs per subscription, in steps of 1 to 2 ms. The benchmark
`ddmq bench t15` measures these costs under the loads of T1 and T3.

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
