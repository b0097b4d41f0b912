"""Every metric of the project in one list: name, kind, unit, labels, meaning.

docs/metrics.md is made from it, and the Spark tables, the dashboard and the report take their names and
units from it. Labels are bounded (topic, group, queue, code, reason): never a key, an id or a client's text.

The list is one module, as long as the metrics are many, because whoever adds a metric must see the others
and take their words. Only the metrics of Kafka clients, which one engine has, are in kafka_catalogue.py.
"""

from __future__ import annotations

from ddmq_common.metrics.metric import CATALOGUE as CATALOGUE  # filled here
from ddmq_common.metrics.metric import counter as _counter
from ddmq_common.metrics.metric import gauge as _gauge
from ddmq_common.metrics.metric import histogram as _histogram

# --- the process
HUB_BLOCKED = _histogram(
    "ddmq_hub_blocked_us",
    "Time for which callbacks blocked the event loop, and therefore all other work, between two polls.",
    unit="us",
)
COLLECT_FAILED = _counter(
    "ddmq_collect_failed_total",
    "Number of times that a collector failed. The gauges of a failed collector keep their previous values.",
)
SAMPLES_WRITTEN = _counter("ddmq_samples_written_total", "Number of sample files written.")
SAMPLES_FAILED = _counter(
    "ddmq_samples_failed_total",
    "Number of sample files that could not be written, merged or deleted, by reason: full, read-only, "
    "missing, denied, other. The data of a file that could not be written is included in the next file.",
    "reason",
)
SAMPLES_DELETED = _counter(
    "ddmq_samples_deleted_total",
    "Number of deleted sample files, by reason: age, bytes, merged, left.",
    "reason",
)
SAMPLES_BYTES = _gauge(
    "ddmq_samples_bytes",
    "Total size of all processes' sample files in this folder, as of the last clean-up.",
    unit="bytes",
)
EVENT_VIEWERS = _gauge("ddmq_event_viewers", "Number of open streams of `GET /events`.")
EVENTS_SKIPPED = _counter("ddmq_events_skipped_total", "Number of snapshots that slow viewers did not get.")
TLS_FILES_INVALID = _gauge(
    "ddmq_tls_files_invalid",
    "1 if the changed certificate files cannot be used, so that the former certificates stay in use.",
)
AUDIT_LINES = _counter("ddmq_audit_lines_total", "Number of lines that were written to the audit log.")
AUDIT_DROPPED = _counter(
    "ddmq_audit_dropped_total",
    "Number of lines that the audit log lacks, because its queue was full or the disk failed.",
)
IDENTITY_USAGE = _gauge(
    "ddmq_identity_usage",
    "What an identity uses of the process, by quota: connections, waiting_calls, in_flight, "
    "open_transactions, pending_delays, idempotency_keys, producers. Only with rights, and for the 500 "
    "identities with the most requests.",
    "identity",
    "quota",
)
# --- rpc
RPC_CONNECTIONS = _gauge("ddmq_rpc_connections", "Number of open client connections.", "service")
RPC_REFUSED = _counter(
    "ddmq_rpc_refused_total",
    "Number of frames or connections that were rejected, by reason.",
    "service",
    "reason",
)
RPC_FAULTS = _counter(
    "ddmq_rpc_faults_total", "Number of Thrift application exceptions sent to clients.", "service", "kind"
)
RPC_ABANDONED = _counter(
    "ddmq_rpc_abandoned_total",
    "Number of replies that were dropped because the client had disconnected.",
    "service",
)
# --- producer proxy
SENDS = _counter(
    "ddmq_sends_total", "Number of messages for which a result was returned, by result code.", "topic", "code"
)
SEND_BYTES = _counter(
    "ddmq_send_bytes_total", "Total size of the stored message bodies.", "topic", unit="bytes"
)
SEND_LATENCY = _histogram(
    "ddmq_send_latency_us",
    "For stored messages, the time from the receipt of the complete request frame to the reply. A batch "
    "counts as one observation for each of its topics.",
    "topic",
    unit="us",
)
SEND_REFUSED = _counter(
    "ddmq_send_refused_total",
    "Number of messages for which a code other than 0 was returned, by reason.",
    "reason",
)
SEND_DEFERRED = _counter("ddmq_send_deferred_total", "Number of requests that were delayed by a rate limit.")
SEND_DUPLICATES = _counter(
    "ddmq_send_duplicates_total",
    "Number of messages confirmed with code 0 because an earlier send had already stored them. "
    "Duplicates are recognised by their idempotency key or sequence.",
    "topic",
)
SEND_LATE = _counter(
    "ddmq_send_late_total",
    "Number of sends whose outcome the backend reported only after code 12 had been returned.",
    "outcome",
)
SEND_INFLIGHT = _gauge(
    "ddmq_send_inflight", "Number of accepted requests that the backend has not settled yet."
)
DELAY_OUTCOMES = _counter(
    "ddmq_delay_order_outcomes_total",
    "Number of outcomes of delay commands at a producer proxy: heard, pending, nobody, waiters_max or "
    'refused. "pending" means that the caller\'s timeout expired, and "nobody" means that the caller was no '
    'longer waiting. "waiters_max" means that too many callers were waiting, so "pending" was returned '
    'immediately. "refused" means that a cancellation or change was rejected; such commands are not counted '
    "as sends.",
    "what",
)
TRANSACTIONS_OPEN = _gauge(
    "ddmq_transactions_open", "Number of undecided transactions in the shards that this proxy owns."
)
TRANSACTIONS_AGE = _gauge(
    "ddmq_transactions_oldest_ms", "Age of the oldest open transaction; 0 if none is open.", unit="ms"
)
TRANSACTIONS_ENDED = _counter(
    "ddmq_transactions_ended_total",
    "Number of ended transactions, by outcome: committed, rolled back, or the reason why the transaction "
    "became a dead letter.",
    "outcome",
)
TRANSACTIONS_CHECKS = _counter(
    "ddmq_transactions_checks_total",
    "Number of transaction checks, which ask a producer group for the outcome of a transaction.",
)
TRANSACTIONS_REFUSED = _counter(
    "ddmq_transactions_refused_total",
    "Number of rejected requests to end a transaction and of rejected polls for checks, by reason. A half "
    "message is also counted if it is a duplicate, or if its transaction has ended or belongs to another "
    "group.",
    "reason",
)
TOPICS_CREATED = _counter("ddmq_topics_created_total", "Number of topics created on first use.", "outcome")
# --- consumer proxy
DELIVERED = _counter("ddmq_delivered_total", "Number of messages delivered to clients.", "group", "topic")
ACKED = _counter("ddmq_acked_total", "Number of messages finished by clients.", "group", "topic")
FAILED = _counter(
    "ddmq_failed_total", "Number of messages that clients reported as failed.", "group", "topic"
)
REDELIVERED = _counter(
    "ddmq_redelivered_total",
    "Number of message redeliveries.",
    "group",
    "topic",
)
RETURNED = _counter(
    "ddmq_returned_total",
    "Number of messages that clients handed back unprocessed. These messages are redelivered, and the "
    "delivery from which they were handed back does not count as an attempt.",
    "group",
    "topic",
)
QUEUE_WAIT = _histogram(
    "ddmq_queue_wait_us",
    "Time between the moment a message is stored and its first delivery. Each pull reply counts as one "
    "observation, based on its oldest message.",
    "group",
    "topic",
    unit="us",
)
PROCESS = _histogram(
    "ddmq_process_us",
    "Time from delivery to acknowledgement. Each lease that a result names counts as one observation, "
    "however many messages the result finishes.",
    "group",
    "topic",
    unit="us",
)
LEASE_TIMEOUTS = _counter(
    "ddmq_lease_timeouts_total", "Number of leases that reached the ack timeout.", "group", "topic"
)
DEAD_LETTERS = _counter(
    "ddmq_dead_letters_total", "Number of messages that became dead letters.", "group", "topic", "reason"
)
RETRY_STEPS = _counter(
    "ddmq_retry_steps_total",
    "Number of messages that entered a step (1 to 16) of the retry path.",
    "group",
    "topic",
    "step",
)
RESULTS_IGNORED = _counter(
    "ddmq_results_ignored_total", "Number of results that had no effect.", "group", "reason"
)
REPLIES = _counter(
    "ddmq_replies_total",
    "Number of acknowledgements with replies, by outcome: stored, stored before, lease over, finished, "
    "refused, again (not possible now), unknown.",
    "group",
    "outcome",
)
SKIPPED = _counter(
    "ddmq_skipped_total",
    "Number of messages finished without delivery, by reason. Such a message has been filtered out, is "
    "missing from the log, has expired, or is pressure traffic that the subscription does not accept. It may "
    "also be a retry for a deleted subscription, or a dead letter that was resent to another group.",
    "group",
    "topic",
    "reason",
)
UNKEYED = _counter(
    "ddmq_unkeyed_total",
    "Number of messages without a key in ordered subscriptions. These messages are delivered in no "
    "particular order.",
    "group",
    "topic",
)
PULLS = _counter("ddmq_pulls_total", "Number of completed pulls, by outcome.", "outcome")
WAITING_PULLS = _gauge("ddmq_waiting_pulls", "Number of pulls that are waiting for messages.")
FETCHES = _counter("ddmq_fetches_total", "Number of completed low-level fetches, by outcome.", "outcome")
FETCHED = _counter(
    "ddmq_fetched_total",
    "Number of messages delivered to fetches and to broadcasting pulls.",
    "group",
    "topic",
)
FETCHERS = _gauge("ddmq_fetchers", "Number of consumer ids that are fetching.")
INSTANCES = _gauge("ddmq_broadcast_instances", "Number of instances of broadcasting groups that are pulling.")
BROADCAST_DROPPED = _counter(
    "ddmq_broadcast_dropped_total",
    "Number of deliveries to broadcasting instances that failed or were not acknowledged in time. These "
    "deliveries are not repeated.",
    "group",
    "reason",
)
FORWARDED = _counter(
    "ddmq_results_forwarded_total",
    "Number of results that were forwarded to the proxy that holds the queue.",
    "outcome",
)
INCONSISTENT = _counter(
    "ddmq_inconsistent_subscriptions_total",
    "Number of clients whose filter differs from that of the subscription or of other clients in their "
    "group.",
    "group",
    "topic",
)
PROGRESS_FAILED = _counter(
    "ddmq_progress_failed_total",
    "Number of failed commits of progress or dead letters, by reason.",
    "reason",
)
# --- where messages wait: per subscription, from the proxy that holds its queues; of those that nobody pulls
# from, from one proxy. Over several proxies they add up; of ages and spans the highest holds
LAG = _gauge(
    "ddmq_lag", "Next offset minus committed offset, summed over the topic's queues.", "group", "topic"
)
LAG_AGE = _gauge(
    "ddmq_lag_age_ms",
    "Age of the oldest unfinished message; 0 if there is no lag.",
    "group",
    "topic",
    unit="ms",
)
INFLIGHT = _gauge(
    "ddmq_inflight", "Number of messages that have been delivered but not finished.", "group", "topic"
)
RETRYING = _gauge(
    "ddmq_retrying",
    "Number of messages that are waiting for their next delivery, including the first messages of parked "
    "keys if these messages have used up their deliveries.",
    "group",
    "topic",
)
RETRY_WAITING = _gauge(
    "ddmq_retry_waiting",
    "Number of failed messages on the retry path, whether they are waiting for a later retry or already due.",
    "group",
    "topic",
)
RETRY_WAITING_AGE = _gauge(
    "ddmq_retry_waiting_age_ms",
    "Longest time for which a message has been on the retry path.",
    "group",
    "topic",
    unit="ms",
)
BLOCKED_KEYS = _gauge(
    "ddmq_blocked_keys",
    "Number of order keys whose first message has failed, so that later messages with the same key wait.",
    "group",
    "topic",
)
BLOCKED_KEY_AGE = _gauge(
    "ddmq_blocked_key_age_ms",
    "Longest time for which any of the blocked keys has been blocked.",
    "group",
    "topic",
    unit="ms",
)
PARKED_KEYS = _gauge(
    "ddmq_parked_keys",
    "Number of blocked order keys that are parked. A key is parked either by an operator or because its "
    "first message has used up its deliveries.",
    "group",
    "topic",
)
STALLED_QUEUES = _gauge(
    "ddmq_stalled_queues",
    "Number of queues that have messages for waiting clients but have made no progress for 30 s, although no"
    " message is in flight, being retried, parked or held back by a limit.",
    "group",
    "topic",
)
PAUSED = _gauge(
    "ddmq_subscription_paused",
    "1 while an operator has paused the subscription, otherwise 0. Every proxy reports this gauge.",
    "group",
    "topic",
    unit="1",
)
ACK_SPAN = _gauge(
    "ddmq_ack_span",
    "Largest distance from the committed offset to the highest finished offset in any queue.",
    "group",
    "topic",
)
# --- delay levels
LEVELS_FIRED = _counter(
    "ddmq_levels_fired_total",
    "Number of messages at a delay level that were appended to their topic.",
    "level",
)
LEVELS_DEAD = _counter(
    "ddmq_levels_dead_total",
    "Number of messages at a delay level that became dead letters.",
    "level",
    "reason",
)
LEVELS_LOST = _counter(
    "ddmq_levels_lost_total",
    "Number of lost delayed messages, by reason: missing or expired.",
    "level",
    "reason",
)
LEVELS_PENDING = _gauge(
    "ddmq_levels_pending", "Number of messages waiting at a level that this process owns.", "level"
)
LEVELS_PUT_OFF = _counter(
    "ddmq_levels_put_off_total",
    "Number of messages that were deferred because their topic was closed to sends when they became due.",
    "level",
)
LEVELS_REMOVED = _counter(
    "ddmq_levels_removed_total",
    "Number of retries that an operator took out of a level before they were due.",
    "level",
)
LEVELS_OVERDUE = _gauge(
    "ddmq_levels_overdue_ms",
    "How long the first unfired message at a level has been overdue, for the levels that this process owns. "
    "The value increases as long as no message fires or the level cannot be read, whatever the reason.",
    "level",
    unit="ms",
)
LEVELS_HELD = _gauge("ddmq_levels_held", "Number of delay levels that this process owns.")
LEVELS_LATENESS = _histogram(
    "ddmq_levels_lateness_us",
    "Time from a message's due time until the message is durable in its topic.",
    unit="us",
)
LEVELS_FAILED = _counter(
    "ddmq_levels_failed_total",
    "Number of failed attempts to read a delay level or to fire its messages. Failed attempts are retried.",
    "what",
    "reason",
)
# --- delay: any due time
DELAY_SHARDS = _gauge("ddmq_delay_shards", "Number of delay shards that this process owns and runs.")
DELAY_PENDING = _gauge("ddmq_delay_pending", "Number of messages waiting in this process's shards.", "topic")
DELAY_PENDING_BYTES = _gauge(
    "ddmq_delay_pending_bytes",
    "Total size of the messages waiting in this process's shards. A repeating message counts once for each "
    "of its deliveries in a day.",
    "topic",
    unit="bytes",
)
DELAY_FULL = _gauge(
    "ddmq_delay_full",
    "Number of topics that have reached their limit for waiting delayed messages. New delayed messages to "
    "these topics are rejected with code 15.",
)
DELAY_ORDERS = _counter(
    "ddmq_delay_orders_total",
    "Number of ingested delay commands, by outcome: added, known, cancelled, already fired, unknown, too "
    "old, rescheduled and others.",
    "outcome",
)
DELAY_FIRED = _counter(
    "ddmq_delay_fired_total", "Number of delayed messages that were appended to their topic.", "topic"
)
DELAY_LATENESS = _histogram(
    "ddmq_delay_lateness_us",
    "Time from a message's due time (or from the send, if the send was later) until the message is durable "
    "in its topic.",
    "topic",
    unit="us",
)
DELAY_OVERDUE = _gauge(
    "ddmq_delay_overdue_ms",
    "How long the oldest unfired message has been overdue, for the shards that this process owns. The value "
    "increases as long as no message fires, whatever the reason. Messages to topics that currently accept "
    "no messages do not count.",
    "shard",
    unit="ms",
)
DELAY_STALE = _counter(
    "ddmq_delay_stale_total",
    "Number of messages that were still in the store although, according to the log, they had already fired."
    " Such messages are removed from the store and do not fire again.",
)
DELAY_ASIDE = _counter(
    "ddmq_delay_aside_total",
    "Number of messages that were deferred because their topic accepted no messages.",
    "topic",
)
DELAY_HELD = _gauge(
    "ddmq_delay_held",
    "1 while an operator holds the delayed messages of the topic, otherwise 0. Every delay service reports "
    "this gauge.",
    "topic",
    unit="1",
)
DELAY_DEAD = _counter(
    "ddmq_delay_dead_total", "Number of delayed messages that became dead letters.", "reason"
)
DELAY_LAG = _gauge(
    "ddmq_delay_ingest_lag",
    "Number of commands in the internal topic that the store has not ingested yet.",
    "shard",
)
DELAY_LOST = _counter(
    "ddmq_delay_lost_total",
    "Number of lost delay commands, by reason: missing or expired.",
    "reason",
)
DELAY_REPLIES_DROPPED = _counter(
    "ddmq_delay_replies_dropped_total", "Number of command outcomes that could not be reported.", "reason"
)
DELAY_FAILED = _counter(
    "ddmq_delay_failed_total",
    "Number of steps of the delay service that failed and will be retried.",
    "what",
    "reason",
)
# --- push and actions
PUSHES = _counter(
    "ddmq_pushes_total",
    "Number of messages that passed through a push chain, by outcome: done, filtered, failed, given up, "
    "again (retried after an error), late.",
    "group",
    "topic",
    "outcome",
)
PUSH_LATENCY = _histogram(
    "ddmq_push_latency_us", "Duration of one push attempt by a sink.", "sink", unit="us"
)
PUSHING = _gauge("ddmq_pushing", "Number of messages in a push chain at this proxy.", "group", "topic")
PUSH_HELD = _gauge(
    "ddmq_push_held", "Number of push subscriptions that are not allowed to run at this proxy.", "reason"
)
SCRIPT_ERRORS = _counter(
    "ddmq_script_errors_total", "Number of messages for which a script failed.", "group", "topic"
)
SCRIPTS_ENDED = _counter(
    "ddmq_scripts_ended_total",
    "Number of scripts that were terminated because they used too much time or memory.",
)
PUSH_HEADERS_IGNORED = _counter(
    "ddmq_push_headers_ignored_total", "Number of headers in carrera_headers that were not sent.", "reason"
)
# --- trace of single messages
TRACE_STORED = _counter("ddmq_trace_events_total", "Number of trace events stored.")
TRACE_DROPPED = _counter(
    "ddmq_trace_events_dropped_total",
    "Number of trace events that were not stored, by reason: memory, day, messages, refused or failed. "
    '"memory" means that too many events were waiting to be appended, and "day" means that '
    'trace_bytes_per_day was reached. "messages" means that too many messages were being traced at once, and'
    ' "refused" means that the store rejected the event.',
    "reason",
)
# --- file log
LOG_COMMITS = _counter("ddmq_log_commits_total", "Number of group commits written.")
LOG_RECORDS = _counter("ddmq_log_records_total", "Number of records written to the commit log.")
LOG_SYNC = _histogram(
    "ddmq_log_sync_us", "Duration of the write and fdatasync for a group commit.", unit="us"
)
LOG_COMMIT_RECORDS = _histogram(
    "ddmq_log_commit_records",
    "Number of records in a group commit. The bucket limits are the same as those of the time histograms.",
)
LOG_COMMIT_BYTES = _histogram(
    "ddmq_log_commit_bytes", "Size of a group commit, including frames.", unit="bytes"
)
LOG_BYTES = _gauge(
    "ddmq_log_bytes",
    "Total size on disk of all segments of the commit log, reported by the process that writes the log.",
    unit="bytes",
)
LOG_DAMAGED = _counter(
    "ddmq_log_damaged_total",
    "Number of damaged sections that were found in files. Damaged data is never served.",
    "file",
)
LOG_TORN = _counter(
    "ddmq_log_torn_bytes_total",
    "Number of unacknowledged bytes removed at startup because they belonged to incomplete records at the "
    "end of a file.",
    unit="bytes",
)
LOG_RESCUES = _counter(
    "ddmq_log_rescues_total",
    "Number of failed writes or syncs, by outcome: continued in a new segment, or still failing.",
    "outcome",
)
LOG_LATE = _counter(
    "ddmq_log_late_total",
    "Number of requests that exceeded their deadline, by outcome: not_stored or unknown.",
    "outcome",
)
LOG_SENDS_FORGOTTEN = _counter(
    "ddmq_log_sends_forgotten_total",
    "Number of sequences and idempotency keys that were discarded early because a limit was reached. If a "
    "message with a discarded sequence or key is sent again, it may be stored again or rejected.",
)
LOG_CHECKPOINTS = _counter("ddmq_log_checkpoints_total", "Number of checkpoints, by outcome.", "outcome")
LOG_SEGMENTS_DELETED = _counter(
    "ddmq_log_segments_deleted_total", "Number of segments deleted by retention.", "reason"
)
LOG_SEGMENTS_HELD = _gauge(
    "ddmq_log_segments_held", "Whether a hold prevents the deletion of a segment (1: yes, 0: no).", unit="1"
)
LOG_RETENTION_FAILURES = _counter(
    "ddmq_log_retention_failures_total", "Number of segment deletions that failed."
)
LOG_DISK_FREE = _gauge(
    "ddmq_log_disk_free_bytes", "Free space on the disk that contains the log.", unit="bytes"
)
LOG_CLOCK_AHEAD = _gauge(
    "ddmq_log_clock_ahead_ms", "Time by which store times are ahead of the wall clock.", unit="ms"
)
LOG_DISK = _gauge(
    "ddmq_log_gate",
    "Whether the log accepts writes (0: all writes, 1: all writes except client sends, 2: no writes).",
    unit="1",
)
from ddmq_common.metrics import kafka_catalogue as kafka_catalogue  # noqa: E402 - in the order of the page

# --- sessions of several processes over one directory
SESSIONS = _gauge("ddmq_sessions", "Number of open sessions at this writer.")
SESSIONS_ENDED = _counter("ddmq_sessions_ended_total", "Number of ended sessions, by reason.", "reason")
SESSION_REFUSED = _counter(
    "ddmq_session_refused_total", "Number of rejected sessions and requests, by reason.", "reason"
)
SESSION_LOST = _counter(
    "ddmq_session_lost_total", "Number of times that this process lost its writer.", "reason"
)
SESSION_UNANSWERED = _counter(
    "ddmq_session_unanswered_total",
    "Number of appends and commits whose outcome remained unknown because the writer disappeared or "
    "responded too late.",
    "what",
)
TAKEOVERS = _counter("ddmq_takeovers_total", "Number of times that this process became the writer.")
