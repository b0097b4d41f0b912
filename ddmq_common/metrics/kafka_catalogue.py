"""The metrics of this process's Kafka clients, which catalogue.py imports at their position in the list."""

from __future__ import annotations

from ddmq_common.metrics.metric import counter as _counter
from ddmq_common.metrics.metric import gauge as _gauge
from ddmq_common.metrics.metric import histogram as _histogram

KAFKA_PENDING_RECORDS = _gauge(
    "ddmq_kafka_pending_records",
    "Number of records from sends that are on their way to the brokers. Once this number reaches 100,000, "
    "sends are rejected.",
)
KAFKA_PENDING_BYTES = _gauge(
    "ddmq_kafka_pending_bytes",
    "Total size of the records from sends that are on their way to the brokers. Once this size reaches "
    "pending_bytes_max in backend.yaml, sends are rejected.",
    unit="bytes",
)
KAFKA_COMMIT = _histogram(
    "ddmq_kafka_commit_us",
    "Time from writing a commit of acknowledgements, retries or delays until Kafka responds, by kind: plain,"
    " transaction.",
    "kind",
    unit="us",
)
KAFKA_COMMITS = _counter(
    "ddmq_kafka_commits_total",
    "Number of commits, by kind (plain, transaction) and outcome: stored, refused (nothing was stored; most "
    "refused commits are retried), fenced (another process has taken over the transactions of this process),"
    " unknown.",
    "kind",
    "outcome",
)
KAFKA_PRODUCERS_REPLACED = _counter(
    "ddmq_kafka_producers_replaced_total",
    "Number of Kafka producers that were replaced after a fatal error or because Kafka did not respond in "
    "time, by producer: messages, progress. The outcome of a record to which Kafka never responded is "
    "unknown.",
    "producer",
)
KAFKA_SENDS_REFUSED = _counter(
    "ddmq_kafka_sends_refused_total",
    "Number of records from sends that were rejected, by reason: silent (the partition does not respond), "
    "share (the partition has used up its share of the limits on pending records).",
    "reason",
)
KAFKA_QUARANTINES = _counter(
    "ddmq_kafka_quarantines_total", "Number of times that a partition was quarantined."
)
KAFKA_RETIRED_IDS = _gauge("ddmq_kafka_retired_ids", "Number of transactional ids that cannot be used.")
KAFKA_FEATURE_LEVEL = _gauge(
    "ddmq_kafka_feature_level",
    "Feature level of the installation: the highest that all its processes supported when it rose.",
)
KAFKA_FOLLOWER_LAG = _gauge(
    "ddmq_kafka_follower_lag_ms",
    "Age of the last heartbeat that this process has read back from Kafka, measured while a later heartbeat "
    "is on its way. Values are normally below 1,000. If the value reaches session_ms in backend.yaml, the "
    "process loses its queues.",
    unit="ms",
)
KAFKA_BROKER_RTT = _gauge(
    "ddmq_kafka_broker_rtt_ms",
    "99th percentile of the round-trip times between the progress producer and a broker over 10 s, as "
    "measured by librdkafka.",
    "broker",
    unit="ms",
)
KAFKA_THROTTLE = _gauge(
    "ddmq_kafka_throttle_ms",
    "Longest time within 10 s for which a broker delayed a response to the progress producer because of a "
    "quota.",
    "broker",
    unit="ms",
)
