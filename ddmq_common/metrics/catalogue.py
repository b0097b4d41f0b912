"""Every metric of the project, in one list, so as long as they are many: name, kind, unit, labels, meaning.

docs/metrics.md is made from it, and the Spark tables, the dashboard and the report take their names and
units from it. Labels are bounded (topic, group, queue, code, reason): never a key, an id or a client's text.
"""

from __future__ import annotations

from ddmq_common.metrics.metric import CATALOGUE as CATALOGUE  # filled here
from ddmq_common.metrics.metric import counter as _counter
from ddmq_common.metrics.metric import gauge as _gauge
from ddmq_common.metrics.metric import histogram as _histogram

# --- the process
HUB_BLOCKED = _histogram(
    "ddmq_hub_blocked_us",
    "Time for which the event loop ran callbacks between two polls. All other work had to wait that long.",
    unit="us",
)
COLLECT_FAILED = _counter(
    "ddmq_collect_failed_total", "Collectors that failed, so that their gauges kept their last values."
)
SAMPLES_WRITTEN = _counter("ddmq_samples_written_total", "Sample files written.")
SAMPLES_FAILED = _counter(
    "ddmq_samples_failed_total",
    "Sample files that could not be written, merged or deleted, by reason: full, read-only, missing, "
    "denied, other. If a sample file cannot be written, the next one includes its data.",
    "reason",
)
SAMPLES_DELETED = _counter(
    "ddmq_samples_deleted_total", "Sample files deleted, by reason: age, bytes, merged, left.", "reason"
)
SAMPLES_BYTES = _gauge(
    "ddmq_samples_bytes",
    "Size of the sample files of all processes in this folder, as of the last sweep.",
    unit="bytes",
)
# --- rpc
RPC_CONNECTIONS = _gauge("ddmq_rpc_connections", "Open client connections.", "service")
RPC_REFUSED = _counter(
    "ddmq_rpc_refused_total", "Frames or connections that were rejected, by reason.", "service", "reason"
)
RPC_FAULTS = _counter(
    "ddmq_rpc_faults_total", "Thrift application exceptions sent to clients.", "service", "kind"
)
RPC_ABANDONED = _counter(
    "ddmq_rpc_abandoned_total", "Replies that were dropped because the client had disconnected.", "service"
)
# --- producer proxy
SENDS = _counter(
    "ddmq_sends_total", "Messages for which a result was returned, by result code.", "topic", "code"
)
SEND_BYTES = _counter("ddmq_send_bytes_total", "Bytes of the stored message bodies.", "topic", unit="bytes")
SEND_LATENCY = _histogram(
    "ddmq_send_latency_us",
    "Time from the complete request frame to the reply, for stored messages. A batch counts once for "
    "each of its topics.",
    "topic",
    unit="us",
)
SEND_REFUSED = _counter(
    "ddmq_send_refused_total", "Messages for which a code other than 0 was returned, by reason.", "reason"
)
SEND_DEFERRED = _counter("ddmq_send_deferred_total", "Requests that waited for a rate limit.")
SEND_DUPLICATES = _counter(
    "ddmq_send_duplicates_total",
    "Messages confirmed with code 0 because an earlier send had already stored them, as shown by their "
    "idempotency key or sequence.",
    "topic",
)
SEND_LATE = _counter(
    "ddmq_send_late_total", "Outcomes that the backend reported after code 12 had been returned.", "outcome"
)
SEND_INFLIGHT = _gauge("ddmq_send_inflight", "Accepted requests that the backend has not settled yet.")
DELAY_OUTCOMES = _counter(
    "ddmq_delay_order_outcomes_total",
    "Outcomes of delay commands at a producer proxy: heard, pending, nobody, waiters_max or refused. "
    '"pending" means that the caller\'s time ran out, and "nobody" that the caller no longer waits. '
    '"waiters_max" means that too many callers were waiting, so that "pending" was returned at '
    'once. "refused" means that a cancel or change was rejected; such commands are not counted as '
    "sends.",
    "what",
)
TRANSACTIONS_OPEN = _gauge(
    "ddmq_transactions_open", "Undecided transactions in the shards that this proxy owns."
)
TRANSACTIONS_AGE = _gauge(
    "ddmq_transactions_oldest_ms", "Age of the oldest open transaction; 0 if there is none.", unit="ms"
)
TRANSACTIONS_ENDED = _counter(
    "ddmq_transactions_ended_total",
    "Transactions that have ended, by outcome: committed, rolled back, or the reason why the transaction "
    "became a dead letter.",
    "outcome",
)
TRANSACTIONS_CHECKS = _counter(
    "ddmq_transactions_checks_total",
    "Checks, which ask a member of a producer group for the outcome of a transaction.",
)
TRANSACTIONS_REFUSED = _counter(
    "ddmq_transactions_refused_total",
    "Ends and polls for which a code other than 0 was returned, by reason. Half messages are also "
    "counted if their transaction has ended or belongs to another group, or if they are second copies.",
    "reason",
)
TOPICS_CREATED = _counter("ddmq_topics_created_total", "Topics created on first use.", "outcome")
# --- consumer proxy
DELIVERED = _counter("ddmq_delivered_total", "Messages delivered to clients.", "group", "topic")
ACKED = _counter("ddmq_acked_total", "Messages finished by clients.", "group", "topic")
FAILED = _counter("ddmq_failed_total", "Messages that clients reported as failed.", "group", "topic")
REDELIVERED = _counter(
    "ddmq_redelivered_total", "Messages delivered again after their first delivery.", "group", "topic"
)
RETURNED = _counter(
    "ddmq_returned_total",
    "Messages that clients handed back unprocessed. They are delivered again, and the returned delivery "
    "is not counted as an attempt.",
    "group",
    "topic",
)
QUEUE_WAIT = _histogram(
    "ddmq_queue_wait_us",
    "Time from store to first delivery. There is one observation per pull reply, for its oldest message.",
    "group",
    "topic",
    unit="us",
)
PROCESS = _histogram(
    "ddmq_process_us",
    "Time from delivery to acknowledgement. There is one observation per lease that a result names, "
    "however many messages it finishes.",
    "group",
    "topic",
    unit="us",
)
LEASE_TIMEOUTS = _counter(
    "ddmq_lease_timeouts_total", "Leases that reached the ack timeout.", "group", "topic"
)
DEAD_LETTERS = _counter("ddmq_dead_letters_total", "Messages moved to the DLQ.", "group", "topic", "reason")
RETRY_STEPS = _counter(
    "ddmq_retry_steps_total",
    "Messages that took a step (1 to 16) of the retry path.",
    "group",
    "topic",
    "step",
)
RESULTS_IGNORED = _counter(
    "ddmq_results_ignored_total", "Acks and fails that had no effect.", "group", "reason"
)
REPLIES = _counter(
    "ddmq_replies_total",
    "Acknowledgements with replies, by outcome: stored, stored before, lease over, finished, refused, "
    "again (not possible now), unknown.",
    "group",
    "outcome",
)
SKIPPED = _counter(
    "ddmq_skipped_total",
    "Messages finished without delivery, by reason: rejected pressure traffic, filtered out, missing from"
    " the log, expired, retried by a subscription that has been deleted since, or dead letters resent to "
    "another group.",
    "group",
    "topic",
    "reason",
)
UNKEYED = _counter(
    "ddmq_unkeyed_total",
    "Messages of ordered subscriptions that have no key and are therefore delivered without order.",
    "group",
    "topic",
)
PULLS = _counter("ddmq_pulls_total", "Completed pulls, by outcome.", "outcome")
WAITING_PULLS = _gauge("ddmq_waiting_pulls", "Pulls that are waiting for a message.")
FETCHES = _counter("ddmq_fetches_total", "Completed low-level fetches, by outcome.", "outcome")
FETCHED = _counter(
    "ddmq_fetched_total", "Messages delivered to fetches and to broadcasting pulls.", "group", "topic"
)
FETCHERS = _gauge("ddmq_fetchers", "Consumer ids that are fetching.")
INSTANCES = _gauge("ddmq_broadcast_instances", "Instances of broadcasting groups that are pulling.")
BROADCAST_DROPPED = _counter(
    "ddmq_broadcast_dropped_total",
    "Deliveries to broadcasting instances that failed or were not acknowledged in time. They are not "
    "repeated.",
    "group",
    "reason",
)
FORWARDED = _counter(
    "ddmq_results_forwarded_total",
    "Results that were passed on to the proxy that holds the queue.",
    "outcome",
)
INCONSISTENT = _counter(
    "ddmq_inconsistent_subscriptions_total",
    "Clients whose filter differs from that of the subscription or of the other clients of their group.",
    "group",
    "topic",
)
PROGRESS_FAILED = _counter(
    "ddmq_progress_failed_total", "Failed commits of progress or of dead letters, by reason.", "reason"
)
# --- where messages wait: per subscription, from the proxy that holds its queues; of those that nobody pulls
# from, from one proxy. Over several proxies they add up; of ages and spans the highest holds
LAG = _gauge(
    "ddmq_lag", "Next offset minus committed offset, summed over the queues of the topic.", "group", "topic"
)
LAG_AGE = _gauge(
    "ddmq_lag_age_ms",
    "Age of the oldest unfinished message; 0 if there is no lag.",
    "group",
    "topic",
    unit="ms",
)
INFLIGHT = _gauge("ddmq_inflight", "Messages that have been delivered but not finished.", "group", "topic")
RETRYING = _gauge(
    "ddmq_retrying",
    "Messages that are waiting for their next delivery, including parked heads that have used up their "
    "deliveries.",
    "group",
    "topic",
)
RETRY_WAITING = _gauge(
    "ddmq_retry_waiting",
    "Failed messages on the retry path, whether they are waiting for a later retry or already due.",
    "group",
    "topic",
)
RETRY_WAITING_AGE = _gauge(
    "ddmq_retry_waiting_age_ms",
    "How long the oldest message has been on the retry path.",
    "group",
    "topic",
    unit="ms",
)
BLOCKED_KEYS = _gauge(
    "ddmq_blocked_keys",
    "Order keys whose first message has failed, so that the messages behind it are waiting.",
    "group",
    "topic",
)
BLOCKED_KEY_AGE = _gauge(
    "ddmq_blocked_key_age_ms",
    "Time for which the longest blocked key has been blocked.",
    "group",
    "topic",
    unit="ms",
)
PARKED_KEYS = _gauge(
    "ddmq_parked_keys",
    "Blocked order keys that are parked, either by an operator or because their first message has used up "
    "its deliveries.",
    "group",
    "topic",
)
STALLED_QUEUES = _gauge(
    "ddmq_stalled_queues",
    "Queues that have messages for which clients are waiting, but have made no progress for 30 s "
    "without an intended reason.",
    "group",
    "topic",
)
ACK_SPAN = _gauge(
    "ddmq_ack_span",
    "Distance from the committed offset to the highest finished offset, in the queue where it is largest.",
    "group",
    "topic",
)
# --- delay levels
LEVELS_FIRED = _counter(
    "ddmq_levels_fired_total", "Messages of a delay level that were appended to their topic.", "level"
)
LEVELS_DEAD = _counter(
    "ddmq_levels_dead_total", "Messages of a delay level that became dead letters.", "level", "reason"
)
LEVELS_LOST = _counter(
    "ddmq_levels_lost_total",
    "Delayed messages that have been lost, by reason: missing or expired.",
    "level",
    "reason",
)
LEVELS_PENDING = _gauge(
    "ddmq_levels_pending", "Messages that are waiting in a level held by this process.", "level"
)
LEVELS_PUT_OFF = _counter(
    "ddmq_levels_put_off_total",
    "Messages that were put back into a level because their topic was closed to sends when they were due.",
    "level",
)
LEVELS_OVERDUE = _gauge(
    "ddmq_levels_overdue_ms",
    "Time since the first unfired message of a level was due, for the levels that this process holds. "
    "It grows while no message fires or the level cannot be read, whatever the reason.",
    "level",
    unit="ms",
)
LEVELS_HELD = _gauge("ddmq_levels_held", "Delay levels that this process holds.")
LEVELS_LATENESS = _histogram(
    "ddmq_levels_lateness_us", "Time from the due time until the message is durable in its topic.", unit="us"
)
LEVELS_FAILED = _counter(
    "ddmq_levels_failed_total",
    "Reads and fires of delay levels that failed and will be retried.",
    "what",
    "reason",
)
# --- delay: any due time
DELAY_SHARDS = _gauge("ddmq_delay_shards", "Delay shards that this process owns and runs.")
DELAY_PENDING = _gauge(
    "ddmq_delay_pending", "Messages that are waiting in the shards of this process.", "topic"
)
DELAY_PENDING_BYTES = _gauge(
    "ddmq_delay_pending_bytes",
    "Bytes of the messages that are waiting in the shards of this process. A repeating message counts "
    "once for each of its deliveries in a day.",
    "topic",
    unit="bytes",
)
DELAY_FULL = _gauge(
    "ddmq_delay_full",
    "Topics that have reached their limit of waiting delayed messages. Further messages are rejected "
    "with code 15.",
)
DELAY_ORDERS = _counter(
    "ddmq_delay_orders_total",
    "Delay commands ingested: added, known, cancelled, already fired, unknown, too old, rescheduled, ….",
    "outcome",
)
DELAY_FIRED = _counter(
    "ddmq_delay_fired_total", "Delayed messages that were appended to their topic.", "topic"
)
DELAY_LATENESS = _histogram(
    "ddmq_delay_lateness_us",
    "Time from the due time (or from the send, if that was later) until the message is durable in its topic.",
    "topic",
    unit="us",
)
DELAY_OVERDUE = _gauge(
    "ddmq_delay_overdue_ms",
    "Time since the oldest unfired message was due, for the shards that this process owns. It grows "
    "while no message fires, whatever the reason. Messages of topics that currently accept no messages "
    "do not count.",
    "shard",
    unit="ms",
)
DELAY_STALE = _counter(
    "ddmq_delay_stale_total",
    "Messages that were still in the store although the log shows that they had fired. They are removed "
    "and not fired again.",
)
DELAY_ASIDE = _counter(
    "ddmq_delay_aside_total", "Messages that were deferred because their topic accepted no messages.", "topic"
)
DELAY_DEAD = _counter("ddmq_delay_dead_total", "Delayed messages that became dead letters.", "reason")
DELAY_LAG = _gauge(
    "ddmq_delay_ingest_lag", "Commands in the inner topic that the store has not ingested yet.", "shard"
)
DELAY_LOST = _counter(
    "ddmq_delay_lost_total", "Delay commands that have been lost, by reason: missing or expired.", "reason"
)
DELAY_REPLIES_DROPPED = _counter(
    "ddmq_delay_replies_dropped_total", "Outcomes that could not be reported.", "reason"
)
DELAY_FAILED = _counter(
    "ddmq_delay_failed_total", "Steps of the delay service that failed and will be retried.", "what", "reason"
)
# --- push and actions
PUSHES = _counter(
    "ddmq_pushes_total",
    "Messages that went through a push chain, by outcome: done, filtered, failed, given up, again "
    "(retried after an error), late.",
    "group",
    "topic",
    "outcome",
)
PUSH_LATENCY = _histogram("ddmq_push_latency_us", "Duration of one attempt of a sink.", "sink", unit="us")
PUSHING = _gauge("ddmq_pushing", "Messages in a push chain at this proxy.", "group", "topic")
PUSH_HELD = _gauge("ddmq_push_held", "Push subscriptions that are not allowed to run here.", "reason")
SCRIPT_ERRORS = _counter("ddmq_script_errors_total", "Messages on which a script failed.", "group", "topic")
SCRIPTS_ENDED = _counter(
    "ddmq_scripts_ended_total", "Scripts that were stopped because they used too much time or memory."
)
PUSH_HEADERS_IGNORED = _counter(
    "ddmq_push_headers_ignored_total", "Headers of carrera_headers that were not sent.", "reason"
)
# --- trace of single messages
TRACE_STORED = _counter("ddmq_trace_events_total", "Trace events stored.")
TRACE_DROPPED = _counter(
    "ddmq_trace_events_dropped_total",
    'Trace events that were not stored, by reason: memory, day, messages, refused or failed. "memory" '
    'means that too many events had not been appended yet, "day" that trace_bytes_per_day was '
    'reached, and "messages" that too many messages were traced at once. "refused" means that the '
    "store rejected the event.",
    "reason",
)
# --- file log
LOG_COMMITS = _counter("ddmq_log_commits_total", "Group commits written.")
LOG_RECORDS = _counter("ddmq_log_records_total", "Records written to the commit log.")
LOG_SYNC = _histogram(
    "ddmq_log_sync_us", "Duration of the write and fdatasync of one group commit.", unit="us"
)
LOG_COMMIT_RECORDS = _histogram(
    "ddmq_log_commit_records", "Records in one group commit. The buckets are the same as those for times."
)
LOG_COMMIT_BYTES = _histogram(
    "ddmq_log_commit_bytes", "Bytes of one group commit, including frames.", unit="bytes"
)
LOG_BYTES = _gauge(
    "ddmq_log_bytes",
    "Bytes on disk of all segments of the commit log, reported by the process that writes it.",
    unit="bytes",
)
LOG_DAMAGED = _counter(
    "ddmq_log_damaged_total", "Damaged parts that were found. They are never served.", "file"
)
LOG_TORN = _counter(
    "ddmq_log_torn_bytes_total",
    "Bytes of partial tails that were truncated at startup. None of these bytes had been acknowledged.",
    unit="bytes",
)
LOG_RESCUES = _counter(
    "ddmq_log_rescues_total",
    "Failed writes or syncs, by outcome: the log continued in a new segment, or it still rejects writes.",
    "outcome",
)
LOG_LATE = _counter(
    "ddmq_log_late_total",
    "Requests that passed their deadline, by outcome: not_stored or unknown.",
    "outcome",
)
LOG_SENDS_FORGOTTEN = _counter(
    "ddmq_log_sends_forgotten_total",
    "Sequences and keys that were forgotten early because a limit was reached. If they are sent again, "
    "the message may be stored again or rejected.",
)
LOG_CHECKPOINTS = _counter("ddmq_log_checkpoints_total", "Checkpoints, by outcome.", "outcome")
LOG_SEGMENTS_DELETED = _counter(
    "ddmq_log_segments_deleted_total", "Segments that retention deleted.", "reason"
)
LOG_SEGMENTS_HELD = _gauge(
    "ddmq_log_segments_held", "1 while a hold prevents the deletion of a segment.", unit="1"
)
LOG_RETENTION_FAILURES = _counter("ddmq_log_retention_failures_total", "Deletions of segments that failed.")
LOG_DISK_FREE = _gauge("ddmq_log_disk_free_bytes", "Free bytes on the disk of the log.", unit="bytes")
LOG_CLOCK_AHEAD = _gauge(
    "ddmq_log_clock_ahead_ms", "Time by which store times are ahead of the wall clock.", unit="ms"
)
LOG_DISK = _gauge(
    "ddmq_log_gate",
    "Whether the log accepts writes: 0 means open, 1 means that sends of clients are rejected, 2 means "
    "that all writes are rejected.",
    unit="1",
)
# --- Kafka, the clients of this process
KAFKA_PENDING_RECORDS = _gauge(
    "ddmq_kafka_pending_records",
    "Records of sends on their way to the brokers. At 100,000, sends are rejected.",
)
KAFKA_PENDING_BYTES = _gauge(
    "ddmq_kafka_pending_bytes",
    "Bytes of these records. At pending_bytes_max of backend.yaml, sends are rejected.",
    unit="bytes",
)
KAFKA_COMMIT = _histogram(
    "ddmq_kafka_commit_us",
    "Time from the write of a commit of acknowledgements, retries or delays to Kafka's answer, by kind: "
    "plain, transaction.",
    "kind",
    unit="us",
)
KAFKA_COMMITS = _counter(
    "ddmq_kafka_commits_total",
    "Commits by kind (plain, transaction) and outcome: stored, refused (nothing is stored, and most are "
    "retried), fenced (another process has taken over the transactions of this one), unknown.",
    "kind",
    "outcome",
)
KAFKA_PRODUCERS_REPLACED = _counter(
    "ddmq_kafka_producers_replaced_total",
    "Producers that were replaced, because Kafka gave up on them or did not answer in time, by producer: "
    "messages, progress. The outcome of records that were never answered is unknown.",
    "producer",
)
KAFKA_FOLLOWER_LAG = _gauge(
    "ddmq_kafka_follower_lag_ms",
    "Age of the newest heartbeat of this process that came back, if a later one is on its way; normally "
    "below 1,000. At session_ms of backend.yaml, the process loses its queues.",
    unit="ms",
)
KAFKA_BROKER_RTT = _gauge(
    "ddmq_kafka_broker_rtt_ms",
    "99th percentile of the round trips to a broker, as librdkafka measures them for progress, over 10 s.",
    "broker",
    unit="ms",
)
KAFKA_THROTTLE = _gauge(
    "ddmq_kafka_throttle_ms",
    "Longest time for which a broker delayed an answer because of a quota, over 10 s, for progress.",
    "broker",
    unit="ms",
)
# --- sessions of several processes over one directory
SESSIONS = _gauge("ddmq_sessions", "Open sessions at this writer.")
SESSIONS_ENDED = _counter("ddmq_sessions_ended_total", "Sessions ended, by reason.", "reason")
SESSION_REFUSED = _counter(
    "ddmq_session_refused_total", "Sessions and requests rejected, by reason.", "reason"
)
SESSION_LOST = _counter(
    "ddmq_session_lost_total", "Number of times that this process lost its writer.", "reason"
)
SESSION_UNANSWERED = _counter(
    "ddmq_session_unanswered_total",
    "Appends and commits whose outcome remained unknown because the writer had disappeared or responded "
    "too late.",
    "what",
)
TAKEOVERS = _counter("ddmq_takeovers_total", "Number of times that this process became the writer.")
