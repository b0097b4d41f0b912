"""Every metric of the project, in one list, so as long as they are many: name, kind, unit, labels, meaning.

docs/metrics.md is made from it, and the Spark tables, the dashboard and the report take their names and units
from it. Labels are bounded (topic, group, queue, code, reason): never a key, an id or a client's text.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """A metric family. Kind is counter, gauge or histogram (registry.Histogram, its values in `unit`).

    `unit`: "" (a count of what the name says), "us", "ms", "bytes", or "1" (a flag or a state).
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    unit: str


CATALOGUE: dict[str, Metric] = {}


def _metric(name: str, kind: str, labels: tuple[str, ...], text: str, unit: str = "") -> Metric:
    metric = Metric(name, kind, labels, text, unit)
    CATALOGUE[name] = metric
    return metric


# --- the process
HUB_BLOCKED = _metric(
    "ddmq_hub_blocked_us",
    "histogram",
    (),
    "Time the event loop ran callbacks between two polls: how long everything else had to wait.",
    "us",
)
COLLECT_FAILED = _metric(
    "ddmq_collect_failed_total", "counter", (), "Collectors that failed; their gauges kept their last values."
)
SAMPLES_WRITTEN = _metric("ddmq_samples_written_total", "counter", (), "Sample files written.")
SAMPLES_FAILED = _metric(
    "ddmq_samples_failed_total",
    "counter",
    ("reason",),
    "Sample files not written, merged or deleted, by reason: full, read-only, missing, denied, other. What "
    "they would have held is in the next one.",
)
SAMPLES_DELETED = _metric(
    "ddmq_samples_deleted_total",
    "counter",
    ("reason",),
    "Sample files deleted, by reason: age, bytes, merged, left.",
)
SAMPLES_BYTES = _metric(
    "ddmq_samples_bytes",
    "gauge",
    (),
    "Sample files of all processes over this folder, as of the last sweep.",
    "bytes",
)
# --- rpc
RPC_CONNECTIONS = _metric("ddmq_rpc_connections", "gauge", ("service",), "Open client connections.")
RPC_REFUSED = _metric(
    "ddmq_rpc_refused_total", "counter", ("service", "reason"), "Frames or connections refused, by reason."
)
RPC_FAULTS = _metric(
    "ddmq_rpc_faults_total", "counter", ("service", "kind"), "Thrift application exceptions sent."
)
RPC_ABANDONED = _metric(
    "ddmq_rpc_abandoned_total", "counter", ("service",), "Answers dropped because the client had gone."
)
# --- producer proxy
SENDS = _metric("ddmq_sends_total", "counter", ("topic", "code"), "Messages answered, by result code.")
SEND_BYTES = _metric("ddmq_send_bytes_total", "counter", ("topic",), "Body bytes stored.", "bytes")
SEND_LATENCY = _metric(
    "ddmq_send_latency_us",
    "histogram",
    ("topic",),
    "Frame complete to the answer of what is stored; a batch counts once for each topic in it.",
    "us",
)
SEND_REFUSED = _metric(
    "ddmq_send_refused_total",
    "counter",
    ("reason",),
    "Messages answered with another code than 0, by reason.",
)
SEND_DEFERRED = _metric("ddmq_send_deferred_total", "counter", (), "Requests that waited for a rate limit.")
SEND_LATE = _metric(
    "ddmq_send_late_total", "counter", ("outcome",), "Backend outcomes that came after code 12 was answered."
)
SEND_INFLIGHT = _metric(
    "ddmq_send_inflight", "gauge", (), "Requests accepted and not settled by the backend."
)
DELAY_OUTCOMES = _metric(
    "ddmq_delay_order_outcomes_total",
    "counter",
    ("what",),
    "Outcomes of delay orders at a producer proxy: heard, pending (the caller's time ran out), nobody (waits "
    "for it any more), waiters_max (the bound of waiting callers: told pending at once), refused (a "
    "cancel or change that could not be: it is no send).",
)
TOPICS_CREATED = _metric("ddmq_topics_created_total", "counter", ("outcome",), "Topics created on first use.")
# --- consumer proxy
DELIVERED = _metric("ddmq_delivered_total", "counter", ("group", "topic"), "Messages handed to clients.")
ACKED = _metric("ddmq_acked_total", "counter", ("group", "topic"), "Messages finished by clients.")
FAILED = _metric("ddmq_failed_total", "counter", ("group", "topic"), "Messages failed by clients.")
REDELIVERED = _metric(
    "ddmq_redelivered_total",
    "counter",
    ("group", "topic"),
    "Messages handed out for the second time or later.",
)
RETURNED = _metric(
    "ddmq_returned_total",
    "counter",
    ("group", "topic"),
    "Messages that clients handed back without having looked at them: delivered again, not counted as tried.",
)
QUEUE_WAIT = _metric(
    "ddmq_queue_wait_us",
    "histogram",
    ("group", "topic"),
    "Stored to handed out for the first time; once per answer to a pull, its oldest message.",
    "us",
)
PROCESS = _metric(
    "ddmq_process_us",
    "histogram",
    ("group", "topic"),
    "Handed out to acknowledged; once per lease that a result names, however many messages it finishes.",
    "us",
)
LEASE_TIMEOUTS = _metric(
    "ddmq_lease_timeouts_total", "counter", ("group", "topic"), "Leases that ran into the ack timeout."
)
DEAD_LETTERS = _metric(
    "ddmq_dead_letters_total", "counter", ("group", "topic", "reason"), "Messages moved to the DLQ."
)
RETRY_STEPS = _metric(
    "ddmq_retry_steps_total",
    "counter",
    ("group", "topic", "step"),
    "Messages that took a step (1 to 16) of the retry path.",
)
RESULTS_IGNORED = _metric(
    "ddmq_results_ignored_total", "counter", ("group", "reason"), "Acks and fails that changed nothing."
)
SKIPPED = _metric(
    "ddmq_skipped_total",
    "counter",
    ("group", "topic", "reason"),
    "Messages finished undelivered: pressure traffic refused, filtered, missing from the log, expired, "
    "retried by a subscription that was deleted since.",
)
UNKEYED = _metric(
    "ddmq_unkeyed_total",
    "counter",
    ("group", "topic"),
    "Messages of ordered subscriptions without a key, delivered without order.",
)
PULLS = _metric("ddmq_pulls_total", "counter", ("outcome",), "Pulls answered, by outcome.")
WAITING_PULLS = _metric("ddmq_waiting_pulls", "gauge", (), "Pulls parked until there is a message.")
FETCHES = _metric("ddmq_fetches_total", "counter", ("outcome",), "Low-level fetches answered, by outcome.")
FETCHED = _metric(
    "ddmq_fetched_total",
    "counter",
    ("group", "topic"),
    "Messages handed out by fetch and to broadcasting pulls.",
)
FETCHERS = _metric("ddmq_fetchers", "gauge", (), "Consumer ids that fetch.")
INSTANCES = _metric("ddmq_broadcast_instances", "gauge", (), "Instances of broadcasting groups that pull.")
BROADCAST_DROPPED = _metric(
    "ddmq_broadcast_dropped_total",
    "counter",
    ("group", "reason"),
    "Deliveries to broadcasting instances that failed or were not acknowledged in time: not repeated.",
)
FORWARDED = _metric(
    "ddmq_results_forwarded_total",
    "counter",
    ("outcome",),
    "Results passed on to the proxy that holds the queue.",
)
INCONSISTENT = _metric(
    "ddmq_inconsistent_subscriptions_total",
    "counter",
    ("group", "topic"),
    "Clients seen that state another filter than the subscription or than their peers.",
)
PROGRESS_FAILED = _metric(
    "ddmq_progress_failed_total", "counter", ("reason",), "Commits of progress or dead letters that failed."
)
# --- where messages wait: per subscription, from the proxy that holds its queues; of those that nobody pulls
# from, from one proxy. Over several proxies they add up; of ages and spans the highest holds
LAG = _metric(
    "ddmq_lag",
    "gauge",
    ("group", "topic"),
    "Next offset less committed offset, over the queues of the topic.",
)
LAG_AGE = _metric(
    "ddmq_lag_age_ms",
    "gauge",
    ("group", "topic"),
    "Age of the oldest unfinished message; 0 without lag.",
    "ms",
)
INFLIGHT = _metric("ddmq_inflight", "gauge", ("group", "topic"), "Messages handed out and not finished.")
RETRYING = _metric("ddmq_retrying", "gauge", ("group", "topic"), "Messages that wait to be handed out again.")
RETRY_WAITING = _metric(
    "ddmq_retry_waiting",
    "gauge",
    ("group", "topic"),
    "Failed messages on the retry path: those that wait for a later retry, and those that are due.",
)
RETRY_WAITING_AGE = _metric(
    "ddmq_retry_waiting_age_ms",
    "gauge",
    ("group", "topic"),
    "How long the first of them has been on the retry path.",
    "ms",
)
BLOCKED_KEYS = _metric(
    "ddmq_blocked_keys", "gauge", ("group", "topic"), "Order keys whose head failed: what follows waits."
)
BLOCKED_KEY_AGE = _metric(
    "ddmq_blocked_key_age_ms", "gauge", ("group", "topic"), "How long the longest blocked key has been.", "ms"
)
STALLED_QUEUES = _metric(
    "ddmq_stalled_queues",
    "gauge",
    ("group", "topic"),
    "Queues with messages that clients wait for and that stand still for 30 s, for no reason that is meant.",
)
ACK_SPAN = _metric(
    "ddmq_ack_span",
    "gauge",
    ("group", "topic"),
    "Committed offset to the highest finished one, of the queue where it is widest.",
)
# --- delay levels
LEVELS_FIRED = _metric(
    "ddmq_levels_fired_total", "counter", ("level",), "Messages of a delay level appended to their topic."
)
LEVELS_DEAD = _metric(
    "ddmq_levels_dead_total", "counter", ("level", "reason"), "Messages of a delay level made dead letters."
)
LEVELS_LOST = _metric(
    "ddmq_levels_lost_total",
    "counter",
    ("level", "reason"),
    "Delayed messages not there: missing or expired.",
)
LEVELS_PENDING = _metric(
    "ddmq_levels_pending", "gauge", ("level",), "Messages waiting in a level this process holds."
)
LEVELS_PUT_OFF = _metric(
    "ddmq_levels_put_off_total",
    "counter",
    ("level",),
    "Messages put back into a level, because their topic was closed to sends when they were due.",
)
LEVELS_OVERDUE = _metric(
    "ddmq_levels_overdue_ms",
    "gauge",
    ("level",),
    "How long ago the head of a level was due that has not fired, in the levels this process holds; it grows "
    "while nothing fires or the level cannot be read, whatever the reason.",
    "ms",
)
LEVELS_HELD = _metric("ddmq_levels_held", "gauge", (), "Delay levels this process holds.")
LEVELS_LATENESS = _metric(
    "ddmq_levels_lateness_us", "histogram", (), "Due time to durable in the message's topic.", "us"
)
LEVELS_FAILED = _metric(
    "ddmq_levels_failed_total",
    "counter",
    ("what", "reason"),
    "Reads and fires of delay levels that failed and are tried again.",
)
# --- delay: any due time
DELAY_SHARDS = _metric("ddmq_delay_shards", "gauge", (), "Delay shards this process owns and runs.")
DELAY_PENDING = _metric(
    "ddmq_delay_pending", "gauge", ("topic",), "Messages waiting in this process's shards."
)
DELAY_PENDING_BYTES = _metric(
    "ddmq_delay_pending_bytes",
    "gauge",
    ("topic",),
    "Bytes of the messages waiting in this process's shards; what repeats counts for each delivery of a day.",
    "bytes",
)
DELAY_FULL = _metric(
    "ddmq_delay_full",
    "gauge",
    (),
    "Topics with as many delayed messages waiting as they may have: more are refused with code 15.",
)
DELAY_ORDERS = _metric(
    "ddmq_delay_orders_total",
    "counter",
    ("outcome",),
    "Orders taken in: added, known, cancelled, already fired, unknown, too old, rescheduled, ….",
)
DELAY_FIRED = _metric(
    "ddmq_delay_fired_total", "counter", ("topic",), "Delay messages appended to their topic."
)
DELAY_LATENESS = _metric(
    "ddmq_delay_lateness_us",
    "histogram",
    ("topic",),
    "Due time (or when it was sent, if that was later) to durable in the message's topic.",
    "us",
)
DELAY_OVERDUE = _metric(
    "ddmq_delay_overdue_ms",
    "gauge",
    ("shard",),
    "How long ago the oldest message was due that has not fired, in the shards this process owns; it grows "
    "while nothing fires, whatever the reason. Messages of topics that take none now do not count.",
    "ms",
)
DELAY_STALE = _metric(
    "ddmq_delay_stale_total",
    "counter",
    (),
    "Messages the store still had although the log says they were fired: forgotten, not fired again.",
)
DELAY_ASIDE = _metric(
    "ddmq_delay_aside_total", "counter", ("topic",), "Messages put aside because their topic took nothing."
)
DELAY_DEAD = _metric("ddmq_delay_dead_total", "counter", ("reason",), "Delay messages made dead letters.")
DELAY_LAG = _metric(
    "ddmq_delay_ingest_lag", "gauge", ("shard",), "Orders in the inner topic that the store has not taken in."
)
DELAY_LOST = _metric(
    "ddmq_delay_lost_total", "counter", ("reason",), "Orders that are not there: missing or expired."
)
DELAY_REPLIES_DROPPED = _metric(
    "ddmq_delay_replies_dropped_total", "counter", ("reason",), "Outcomes that could not be told."
)
DELAY_FAILED = _metric(
    "ddmq_delay_failed_total",
    "counter",
    ("what", "reason"),
    "Steps of the delay service that failed and are tried again.",
)
# --- push and actions
PUSHES = _metric(
    "ddmq_pushes_total",
    "counter",
    ("group", "topic", "outcome"),
    "Messages through a push chain: done, filtered, failed, given up, again (an error, tried again), late.",
)
PUSH_LATENCY = _metric("ddmq_push_latency_us", "histogram", ("sink",), "One try of a sink.", "us")
PUSHING = _metric("ddmq_pushing", "gauge", ("group", "topic"), "Messages in a push chain at this proxy.")
PUSH_HELD = _metric("ddmq_push_held", "gauge", ("reason",), "Push subscriptions that may not run here.")
SCRIPT_ERRORS = _metric(
    "ddmq_script_errors_total", "counter", ("group", "topic"), "Messages on which a script failed."
)
SCRIPTS_ENDED = _metric(
    "ddmq_scripts_ended_total", "counter", (), "Scripts ended for taking too much time or memory."
)
PUSH_HEADERS_IGNORED = _metric(
    "ddmq_push_headers_ignored_total",
    "counter",
    ("reason",),
    "Headers of carrera_headers that were not sent.",
)
# --- file log
LOG_COMMITS = _metric("ddmq_log_commits_total", "counter", (), "Group commits written.")
LOG_RECORDS = _metric("ddmq_log_records_total", "counter", (), "Records written to the commit log.")
LOG_SYNC = _metric("ddmq_log_sync_us", "histogram", (), "Write and fdatasync of one group commit.", "us")
LOG_COMMIT_RECORDS = _metric(
    "ddmq_log_commit_records", "histogram", (), "Records in one group commit; buckets as those of times."
)
LOG_COMMIT_BYTES = _metric(
    "ddmq_log_commit_bytes", "histogram", (), "Bytes of one group commit, frames included.", "bytes"
)
LOG_BYTES = _metric(
    "ddmq_log_bytes",
    "gauge",
    (),
    "Bytes on disk of all segments of the commit log, at the process that writes it.",
    "bytes",
)
LOG_DAMAGED = _metric("ddmq_log_damaged_total", "counter", ("file",), "Damaged pieces found, never served.")
LOG_TORN = _metric(
    "ddmq_log_torn_bytes_total",
    "counter",
    (),
    "Bytes of torn tail cut at the start, never acknowledged.",
    "bytes",
)
LOG_RESCUES = _metric(
    "ddmq_log_rescues_total", "counter", ("outcome",), "Failed writes or syncs: moved on, or stayed refused."
)
LOG_LATE = _metric(
    "ddmq_log_late_total", "counter", ("outcome",), "Requests past their deadline: not_stored or unknown."
)
LOG_CHECKPOINTS = _metric("ddmq_log_checkpoints_total", "counter", ("outcome",), "Checkpoints, by outcome.")
LOG_SEGMENTS_DELETED = _metric(
    "ddmq_log_segments_deleted_total", "counter", ("reason",), "Segments that retention deleted."
)
LOG_SEGMENTS_HELD = _metric("ddmq_log_segments_held", "gauge", (), "1 while a hold keeps a segment.", "1")
LOG_RETENTION_FAILURES = _metric("ddmq_log_retention_failures_total", "counter", (), "Deletions that failed.")
LOG_DISK_FREE = _metric("ddmq_log_disk_free_bytes", "gauge", (), "Free bytes where the log lies.", "bytes")
LOG_CLOCK_AHEAD = _metric("ddmq_log_clock_ahead_ms", "gauge", (), "Store times ahead of the wall.", "ms")
LOG_DISK = _metric("ddmq_log_gate", "gauge", (), "0 open, 1 client sends refused, 2 all writes refused.", "1")
# --- sessions of several processes over one directory
SESSIONS = _metric("ddmq_sessions", "gauge", (), "Open sessions at this writer.")
SESSIONS_ENDED = _metric("ddmq_sessions_ended_total", "counter", ("reason",), "Sessions ended, by reason.")
SESSION_REFUSED = _metric(
    "ddmq_session_refused_total", "counter", ("reason",), "Sessions and requests refused, by reason."
)
SESSION_LOST = _metric(
    "ddmq_session_lost_total", "counter", ("reason",), "Times this process lost its writer."
)
SESSION_UNANSWERED = _metric(
    "ddmq_session_unanswered_total",
    "counter",
    ("what",),
    "Appends and commits whose outcome stayed unknown because the writer was gone or late.",
)
TAKEOVERS = _metric("ddmq_takeovers_total", "counter", (), "Times this process became the writer.")
