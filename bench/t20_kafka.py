"""T20: the same proxies on Kafka, beside bare confluent-kafka on the same brokers in the same run.

`python -m bench.t20_kafka [PART…]`: sends, pulls, latency, delays (all of these without), and restore when
named (DDMQ_BENCH_PENDING says of how many). Where there is no Java it says so, and measures nothing.
"""

from __future__ import annotations

import sys

from bench.harness import ARGUMENTS, CLIENT_CORE, pin
from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError


def kafka_is_here(name: str) -> bool:
    """Whether a broker can be started; says so where it cannot."""
    try:
        java()
    except ConfigError as error:
        print(f"{name} IS NOT MEASURED, NO KAFKA CAN BE STARTED HERE: {error}")
        return False
    return True


def main() -> None:
    if not kafka_is_here("T20"):
        return
    from bench.kafka import delays, latency, pulls, restore, sends  # confluent-kafka is an extra
    from bench.kafka.rig import rig

    default_benchmarks = {
        "sends": sends.main,
        "pulls": pulls.main,
        "latency": latency.main,
        "delays": delays.main,
    }
    benchmarks = {**default_benchmarks, "restore": restore.main}
    names = ARGUMENTS or list(default_benchmarks)
    if unknown := [each for each in names if each not in benchmarks]:
        sys.exit(f"unknown: {', '.join(unknown)}; allowed: {', '.join(benchmarks)}")
    with rig() as one:
        pin(CLIENT_CORE)
        for name in names:
            benchmarks[name](one)


if __name__ == "__main__":
    main()
