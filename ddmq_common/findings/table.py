"""The table lists everything that can be wrong: names, severities, thresholds and durations.

The server's findings (GET /findings), the verdict of the report, the alert rules of Prometheus and the facts
in docs/alerts.md come from this table; tools/alerts.py writes the last two. Critical: act now. Warning: look
today. Info: nothing is lost or late.
"""

from __future__ import annotations

from ddmq_common.findings.conditions import (
    INSTANCE,
    FallsBelow,
    GaugeAbove,
    Grown,
    NoneOwned,
    NotConsumed,
    OnlyPrometheus,
    QuantileAbove,
    Selector,
    ShareAbove,
)
from ddmq_common.findings.rule import CRITICAL, INFO, WARNING, FindingRule
from ddmq_common.metrics import catalogue as metrics
from ddmq_common.metrics import kafka_catalogue as kafka_metrics

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
MINUTE_MS = 60_000
SECOND_US = 1_000_000
SUBSCRIPTION = ("group", "topic")
PROCESS = (INSTANCE,)
STORED, AT_LEAST_ONCE, ORDER, DELAY, BOUNDED, KAFKA = (
    "ddmq-stored-means-stored", "ddmq-at-least-once", "ddmq-order", "ddmq-delay", "ddmq-bounded", "ddmq-kafka"
)  # fmt: skip
SYSTEM_PAGE = "/console/system"
GROUP_PAGE = "/console/groups/{group}"
TOPIC_PAGE = "/console/topics/{topic}"
SHOW_GROUP = "ddmq group show {group}"
SHOW_TOPIC = "ddmq topic show {topic}"
DOCTOR, STATS = "ddmq doctor", "ddmq stats"
DELAY_OVERVIEW, DELAY_PAGE = "ddmq delay count", "/console/delays"
LEVELS = "ddmq delay levels"

RULES = (
    FindingRule(
        "DdmqProcessDown", STORED, CRITICAL,
        OnlyPrometheus('up{job=~"ddmq.*"} == 0', "a process cannot report its own end", PROCESS),
        "{instance} does not answer",
        "Read the last lines of its log and start it again; stored messages are not lost.",
        DOCTOR, SYSTEM_PAGE, for_s=MINUTE_S,
    ),
    FindingRule(
        "DdmqWritesRefused", STORED, CRITICAL,
        GaugeAbove(metrics.LOG_DISK, 0, PROCESS),
        "The log at {instance} rejects {value}: the disk is nearly full",
        "Free disk space, or let retention keep less.",
        DOCTOR, SYSTEM_PAGE, for_s=MINUTE_S, unit="rejected",
    ),
    FindingRule(
        "DdmqDiskFillsUp", STORED, WARNING,
        FallsBelow(metrics.LOG_DISK_FREE, 2 << 30, 4 * HOUR_S, HOUR_S, PROCESS),
        "The disk of {instance} will have less than {threshold} free in 4 h, if the trend continues",
        "Free disk space, or let retention keep less, before sends are rejected.",
        DOCTOR, SYSTEM_PAGE, for_s=15 * MINUTE_S, unit="bytes",
    ),
    FindingRule(
        "DdmqSyncRefused", STORED, CRITICAL,
        Grown((Selector(metrics.LOG_RESCUES, {"outcome": ("refused",)}),), 10 * MINUTE_S, PROCESS),
        "A write or sync failed at {instance}, and the log rejects writes",
        "Check the disk; the log accepts writes again when the disk has recovered.",
        DOCTOR, SYSTEM_PAGE,
    ),
    FindingRule(
        "DdmqLogDamaged", STORED, CRITICAL,
        Grown((Selector(metrics.LOG_DAMAGED),), HOUR_S, (INSTANCE, "file"), rare=True),
        "{instance} found {value damaged section} in files of the kind {file}; damaged data is not served",
        "Check disk and memory; keep the folder damaged/.",
        DOCTOR, SYSTEM_PAGE,
    ),
    FindingRule(
        "DdmqSendsFail", STORED, WARNING,
        ShareAbove(
            Selector(metrics.SENDS, without={"code": ("0",)}), Selector(metrics.SENDS),
            0.01, 5 * MINUTE_S, ("topic",),
        ),
        "{value} of the sends to {topic} get another code than 0",
        "Check which code it is.",
        SHOW_TOPIC, TOPIC_PAGE, for_s=5 * MINUTE_S, unit="share", note="yours: the share",
    ),
    FindingRule(
        "DdmqSendsUnknown", STORED, WARNING,
        Grown((Selector(metrics.SENDS, {"code": ("12",)}),), 5 * MINUTE_S, ("topic",), rare=True),
        "{value send} to {topic} got no confirmation in time, and may or may not be stored",
        "Check the log's sync times, and the disk.",
        DOCTOR, TOPIC_PAGE,
    ),
    FindingRule(
        "DdmqSendsSlow", STORED, WARNING,
        QuantileAbove(metrics.SEND_LATENCY, 0.99, 250_000, 5 * MINUTE_S, ("topic",)),
        "One send in a hundred to {topic} takes more than {threshold}",
        "Check the log's sync times, and for how long the event loop is blocked.",
        STATS, TOPIC_PAGE, for_s=10 * MINUTE_S, unit="us", note="yours: 250 ms",
    ),
    FindingRule(
        "DdmqUnreadExpired", AT_LEAST_ONCE, CRITICAL,
        Grown((Selector(metrics.SKIPPED, {"reason": ("expired",)}),), 15 * MINUTE_S, SUBSCRIPTION, rare=True),
        "Retention deleted {value message} of {topic} that {group} had not read",
        "Add consumers, or retain messages longer; these messages are lost for the group.",
        SHOW_GROUP, GROUP_PAGE,
    ),
    FindingRule(
        "DdmqMessagesMissing", AT_LEAST_ONCE, CRITICAL,
        Grown((Selector(metrics.SKIPPED, {"reason": ("missing",)}),), 15 * MINUTE_S, SUBSCRIPTION, rare=True),
        "{group} passed over {value message} of {topic}: missing from the log",
        "See DdmqLogDamaged.",
        SHOW_TOPIC, GROUP_PAGE,
    ),
    FindingRule(
        "DdmqDeadLetters", AT_LEAST_ONCE, WARNING,
        Grown((Selector(metrics.DEAD_LETTERS),), 15 * MINUTE_S, SUBSCRIPTION, rare=True),
        "{value message} of {topic} went to the dead letters of {group}",
        "See the reasons with ddmq dlq show, fix the cause, then ddmq dlq resend.",
        "ddmq dlq show {group}", "/console/dead-letters/{group}",
    ),
    FindingRule(
        "DdmqGroupFails", AT_LEAST_ONCE, WARNING,
        ShareAbove(Selector(metrics.FAILED), Selector(metrics.DELIVERED), 0.5, 10 * MINUTE_S, SUBSCRIPTION),
        "{group} fails {value} of what it receives from {topic}",
        "ddmq group show GROUP shows the messages that wait for a retry; read the consumers' logs.",
        SHOW_GROUP, GROUP_PAGE, for_s=5 * MINUTE_S, unit="share",
    ),
    FindingRule(
        "DdmqRetriesWait", AT_LEAST_ONCE, WARNING,
        GaugeAbove(metrics.RETRY_WAITING_AGE, 30 * MINUTE_MS, SUBSCRIPTION, unless=metrics.PAUSED),
        "A message of {topic} has been failing at {group} for {value}",
        "Fix the cause before the message becomes a dead letter.",
        SHOW_GROUP, "/console/retries?group={group}", for_s=5 * MINUTE_S, unit="ms",
    ),
    FindingRule(
        "DdmqQueuesStalled", AT_LEAST_ONCE, CRITICAL,
        GaugeAbove(metrics.STALLED_QUEUES, 0, SUBSCRIPTION, total=True),
        "{value queue} of {topic} stalled: clients of {group} wait in vain for messages there",
        "ddmq group show GROUP lists the queues, and a topic that no client pulls.",
        SHOW_GROUP, GROUP_PAGE, for_s=2 * MINUTE_S,
    ),
    FindingRule(
        "DdmqProgressFails", AT_LEAST_ONCE, CRITICAL,
        Grown((Selector(metrics.PROGRESS_FAILED),), 5 * MINUTE_S, (INSTANCE, "reason"), steady=True),
        "{instance} cannot store acknowledgements ({reason})",
        "Check the process that writes the log; acknowledged messages may be redelivered.",
        STATS, SYSTEM_PAGE, for_s=5 * MINUTE_S,
    ),
    FindingRule(
        "DdmqDelayedLost", AT_LEAST_ONCE, CRITICAL,
        Grown((Selector(metrics.DELAY_LOST), Selector(metrics.LEVELS_LOST)), 15 * MINUTE_S, rare=True),
        "{value delayed message} cannot be found in the log",
        "Find them in the delay service's log; see DdmqLogDamaged.",
        DELAY_OVERVIEW, DELAY_PAGE,
    ),
    FindingRule(
        "DdmqDelayedDead", AT_LEAST_ONCE, WARNING,
        Grown((Selector(metrics.DELAY_DEAD), Selector(metrics.LEVELS_DEAD)), 15 * MINUTE_S, rare=True),
        "{value delayed message} could not be delivered and went to the dead letters",
        "Find out why the topic rejects them, then send them again.",
        "ddmq dlq list", "/console/dead-letters",
    ),
    FindingRule(
        "DdmqKeyBlocked", ORDER, WARNING,
        GaugeAbove(metrics.BLOCKED_KEY_AGE, 10 * MINUTE_MS, SUBSCRIPTION, unless=metrics.PAUSED),
        "A key of {group} ({topic}) has been blocked for {value}",
        "ddmq group keys shows the key and the reason; park, skip or replay the key.",
        "ddmq group keys {group}", "/console/keys?group={group}", for_s=MINUTE_S, unit="ms",
        note="yours: 10 minutes",
    ),
    FindingRule(
        "DdmqUnkeyed", ORDER, WARNING,
        Grown((Selector(metrics.UNKEYED),), 15 * MINUTE_S, SUBSCRIPTION),
        "{group} consumes {topic} in order, but {value message} came without a key",
        "Compare the order key's path with a message, and find the sender.",
        SHOW_GROUP, GROUP_PAGE,
    ),
    FindingRule(
        "DdmqClientsDisagree", ORDER, WARNING,
        Grown((Selector(metrics.INCONSISTENT),), 15 * MINUTE_S, SUBSCRIPTION, rare=True),
        "Clients of {group} subscribe to {topic} with different filters",
        "ddmq group show GROUP lists the clients; give all of them the same filter.",
        SHOW_GROUP, GROUP_PAGE,
    ),
    FindingRule(
        "DdmqDelayLate", DELAY, WARNING,
        QuantileAbove(metrics.DELAY_LATENESS, 0.99, SECOND_US, 5 * MINUTE_S, ("topic",)),
        "One delayed message in a hundred for {topic} is more than {threshold} late",
        "Check whether the topic accepts messages, and the delay service's process.",
        "ddmq delay list {topic}", "/console/delays?topic={topic}", for_s=5 * MINUTE_S, unit="us",
        note="yours: 1 s",
    ),
    FindingRule(
        "DdmqDelayOverdue", DELAY, CRITICAL,
        GaugeAbove(metrics.DELAY_OVERDUE, MINUTE_MS, ("shard",)),
        "A message in delay shard {shard} has been due for {value} and has not fired",
        "Check /ready, the log of the delay service's process, and ddmq_delay_failed_total.",
        DELAY_OVERVIEW, DELAY_PAGE, for_s=MINUTE_S, unit="ms", note="yours: 1 minute",
    ),
    FindingRule(
        "DdmqDelayFull", DELAY, WARNING,
        GaugeAbove(metrics.DELAY_FULL, 0),
        "{value topic} reached the limit of waiting delayed messages: more are rejected (code 15)",
        "Find the topic with ddmq delay count; cancel unwanted messages, or raise pending_count_max or "
        "pending_bytes_max.",
        DELAY_OVERVIEW, DELAY_PAGE, for_s=MINUTE_S, note="yours: 1 minute",
    ),
    FindingRule(
        "DdmqLevelsOverdue", DELAY, CRITICAL,
        GaugeAbove(metrics.LEVELS_OVERDUE, MINUTE_MS, ("level",)),
        "A message in delay level {level} has been due for {value} and has not fired",
        "Check /ready, the log of the delay service's process, and ddmq_levels_failed_total.",
        LEVELS, DELAY_PAGE, for_s=MINUTE_S, unit="ms", note="yours: 1 minute",
    ),
    FindingRule(
        "DdmqLevelsLate", DELAY, WARNING,
        QuantileAbove(metrics.LEVELS_LATENESS, 0.99, 2 * SECOND_US, 5 * MINUTE_S),
        "One message in a hundred at the delay levels, retries included, is more than {threshold} late",
        "Check ddmq_levels_failed_total, and the process that owns the levels.",
        LEVELS, DELAY_PAGE, for_s=5 * MINUTE_S, unit="us", note="yours: 2 s",
    ),
    FindingRule(
        "DdmqNoLevelScheduler", DELAY, CRITICAL,
        NoneOwned(metrics.LEVELS_HELD),
        "No process fires delay levels: messages with DELAY=n, and retries, wait",
        "Start ddmq delay-service over the directory.",
        LEVELS, SYSTEM_PAGE, for_s=MINUTE_S,
    ),
    FindingRule(
        "DdmqDelayNotTakenIn", DELAY, WARNING,
        GaugeAbove(metrics.DELAY_LAG, 100_000, ("shard",), total=True),
        "{value} delay commands of shard {shard} have not been ingested",
        "Check the delay service's process and disk; due messages among them are late.",
        DELAY_OVERVIEW, DELAY_PAGE, for_s=10 * MINUTE_S, note="yours: 100,000",
    ),
    FindingRule(
        "DdmqCancelsPending", DELAY, WARNING,
        ShareAbove(
            Selector(metrics.DELAY_OUTCOMES, {"what": ("pending",)}),
            Selector(metrics.DELAY_OUTCOMES, {"what": ("pending", "heard")}),
            0.05, 5 * MINUTE_S,
        ),
        "The outcome of {value} of the cancels and changes did not arrive in time",
        "The commands are carried out all the same; check the delay service's process.",
        DELAY_OVERVIEW, DELAY_PAGE, for_s=10 * MINUTE_S, unit="share",
    ),
    FindingRule(
        "DdmqDelaysHeld", DELAY, WARNING,
        GaugeAbove(metrics.DELAY_HELD, 0, ("topic",)),
        "The delayed messages of {topic} have been held for more than a day",
        "Release the messages with ddmq delay release, or cancel them.",
        "ddmq delay count {topic}", "/console/delays?topic={topic}", for_s=DAY_S, note="yours: 1 day",
    ),
    FindingRule(
        "DdmqLagOld", BOUNDED, WARNING,
        GaugeAbove(metrics.LAG_AGE, 15 * MINUTE_MS, SUBSCRIPTION, unless=metrics.PAUSED),
        "{group} is {value} behind in {topic}",
        "Check whether consumers run, fail, or are too few.",
        "ddmq lag {group}", GROUP_PAGE, for_s=5 * MINUTE_S, unit="ms", note="yours: 15 minutes",
    ),
    FindingRule(
        "DdmqNobodyConsumes", BOUNDED, WARNING,
        NotConsumed(
            metrics.LAG, (metrics.DELIVERED, metrics.FETCHED, metrics.PUSHES), 10 * MINUTE_S, SUBSCRIPTION,
            unless=metrics.PAUSED,
        ),
        "{group} is {value message} behind in {topic}, and none is delivered",
        "Check whether consumers run; delete a group that is no longer used.",
        SHOW_GROUP, GROUP_PAGE, for_s=10 * MINUTE_S,
    ),
    FindingRule(
        "DdmqGroupPaused", BOUNDED, WARNING,
        GaugeAbove(metrics.PAUSED, 0, SUBSCRIPTION),
        "{group} has been paused on {topic} for more than a day",
        "Resume the group with ddmq group resume; retention deletes what waits for too long.",
        SHOW_GROUP, GROUP_PAGE, for_s=DAY_S, note="yours: 1 day",
    ),
    FindingRule(
        "DdmqAckSpanWide", BOUNDED, WARNING,
        GaugeAbove(metrics.ACK_SPAN, 5_000_000, SUBSCRIPTION),
        "One message holds {group} back in {topic}: the newest finished message is {value} offsets ahead",
        "Find the oldest unfinished message; reading stops at the span limit of the subscription.",
        SHOW_GROUP, GROUP_PAGE, for_s=5 * MINUTE_S,
    ),
    FindingRule(
        "DdmqOverload", BOUNDED, WARNING,
        Grown((Selector(metrics.SENDS, {"code": ("15",)}),), 5 * MINUTE_S, PROCESS, steady=True),
        "{instance} rejects sends because it is busy",
        "Check the limits, and who reaches them.",
        STATS, SYSTEM_PAGE, for_s=5 * MINUTE_S,
    ),
    FindingRule(
        "DdmqConnectionsRefused", BOUNDED, WARNING,
        Grown((Selector(metrics.RPC_REFUSED),), 5 * MINUTE_S, (INSTANCE, "service", "reason"), steady=True),
        "{instance} ({service}) rejects frames or connections: {reason}",
        "Check who connects, and the limits in conf/rpc.yaml.",
        "ddmq config show", SYSTEM_PAGE, for_s=10 * MINUTE_S,
    ),
    FindingRule(
        "DdmqCertificatesInvalid", BOUNDED, WARNING,
        GaugeAbove(metrics.TLS_FILES_INVALID, 0, PROCESS),
        "{instance} cannot use its changed certificate files and serves the former certificates",
        "Read why in its log or with ddmq doctor; correct the files before the former ones expire.",
        DOCTOR, SYSTEM_PAGE, for_s=MINUTE_S,
    ),
    FindingRule(
        "DdmqHubBlocked", BOUNDED, WARNING,
        QuantileAbove(metrics.HUB_BLOCKED, 0.999, 200_000, 5 * MINUTE_S, PROCESS),
        "The event loop of {instance} is blocked for more than {threshold} at a time",
        "Give the process a core of its own, or spread the load.",
        STATS, SYSTEM_PAGE, for_s=10 * MINUTE_S, unit="us",
    ),
    FindingRule(
        "DdmqWriterLost", BOUNDED, WARNING,
        OnlyPrometheus(
            "sum by (job) (increase(ddmq_takeovers_total[1h])) > 3",
            "the takeovers of all processes must be added up",
        ),
        "The writer of the log changed {value} times in an hour",
        "Find out why writers exit or stall.",
        DOCTOR, SYSTEM_PAGE,
    ),
    FindingRule(
        "DdmqSamplesFail", BOUNDED, INFO,
        Grown((Selector(metrics.SAMPLES_FAILED),), 15 * MINUTE_S, (INSTANCE, "reason"), steady=True),
        "{instance} cannot write the samples for the report ({reason})",
        "Check the folder of the samples; no message is affected.",
        DOCTOR, SYSTEM_PAGE, for_s=15 * MINUTE_S,
    ),
    FindingRule(
        "DdmqKafkaFollowerLate", KAFKA, CRITICAL,
        GaugeAbove(kafka_metrics.KAFKA_FOLLOWER_LAG, 2_000, PROCESS),
        "{instance} reads its own heartbeats back after {value}",
        "Check the brokers of the coordination topic, and the load of the process; at session_ms it loses "
        "its queues.",
        DOCTOR, SYSTEM_PAGE, for_s=MINUTE_S, unit="ms", note="yours: two thirds of session_ms",
    ),
    FindingRule(
        "DdmqKafkaProducerReplaced", KAFKA, WARNING,
        Grown((Selector(kafka_metrics.KAFKA_PRODUCERS_REPLACED),), 10 * MINUTE_S, (INSTANCE, "producer")),
        "{instance} replaced a Kafka producer ({producer}) that failed or got no answer",
        "Check the brokers: the outcome of what was in flight is unknown, and clients may send it again.",
        DOCTOR, SYSTEM_PAGE,
    ),
    FindingRule(
        "DdmqKafkaPendingFull", KAFKA, WARNING,
        GaugeAbove(kafka_metrics.KAFKA_PENDING_BYTES, 107_374_182, PROCESS),
        "{value} of sends at {instance} wait for Kafka; soon sends are rejected",
        "Check which brokers are slow, and their quotas.",
        DOCTOR, SYSTEM_PAGE, for_s=MINUTE_S, unit="bytes", note="yours: four fifths of pending_bytes_max",
    ),
    FindingRule(
        "DdmqKafkaCommitsSlow", KAFKA, WARNING,
        QuantileAbove(kafka_metrics.KAFKA_COMMIT, 0.99, SECOND_US, 5 * MINUTE_S, (INSTANCE, "kind")),
        "One commit in a hundred ({kind}) at {instance} takes more than {threshold}",
        "Check the brokers; acknowledgements are confirmed, and delays fire, that much later.",
        DOCTOR, SYSTEM_PAGE, for_s=10 * MINUTE_S, unit="us", note="yours",
    ),
    FindingRule(
        "DdmqKafkaThrottled", KAFKA, WARNING,
        GaugeAbove(kafka_metrics.KAFKA_THROTTLE, 0, (INSTANCE, "broker")),
        "Broker {broker} delays {instance} by {value} because of a quota",
        "Raise the quota of ddmq's user, or send less.",
        DOCTOR, SYSTEM_PAGE, for_s=5 * MINUTE_S, unit="ms",
    ),
)  # fmt: skip
RULES_BY_NAME = {rule.name: rule for rule in RULES}
