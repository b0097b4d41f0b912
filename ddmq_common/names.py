"""Names: what a topic or group may be called, and every internal topic's name, in one place.

The `%RETRY%` and `%DLQ%` prefixes and SCHEDULE_TOPIC_XXXX are RocketMQ's own, so that its tools and
its users recognise them.
"""

import re

TOPIC_BYTES_MAX = 127
GROUP_BYTES_MAX = 119  # leaves room for the longest prefix below

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LEVELS_GROUP = SCHEDULE_TOPIC  # whose progress on SCHEDULE_TOPIC is how far the levels have fired
DELAY_TOPIC = "%DELAY"  # orders to the delay service; queue = shard
DELAY_FULL_PREFIX = "delay-full/"  # settings: by shard, the topics whose pending messages are at their bound
DELAY_GROUP = DELAY_TOPIC  # whose progress there is what the store has taken in
WAITING_TOPIC = "%DELAY-WAITING"  # of each delay id the last that is known: key = uuid, queue = shard
COMPACTED_TOPICS = frozenset((WAITING_TOPIC,))  # where the engine compacts, the last record of a key stays
FIRED_GROUP = "%DELAY-FIRED"  # whose progress there is what was fired or cancelled
OUTCOME_TOPIC = "%DELAY-OUTCOMES"  # what became of orders; a queue is one producer proxy's
OUTCOME_GROUP = OUTCOME_TOPIC
DELAY_DLQ_TOPIC = "%DLQ%" + "%DELAY"  # delay messages that can never be appended
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # messages of transactions that are not decided; queue = shard
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"  # how transactions ended; the same queue
TRANSACTION_GROUP = HALF_TOPIC  # whose progress on HALF_TOPIC is what was decided
TRANSACTION_DEAD_TOPIC = (
    "TRANS_CHECK_MAX_TIME_TOPIC"  # transactions that nobody decided, or nobody can commit
)
HEARTBEAT_TOPIC = "carrera_heartbeat"
DELAY_DIALECTS = ("amq", "rabbit", "rocketmq", "ddmq")  # words for delays in properties; docs/delay.md
QUEUES_DEFAULT = 4
CHANGE_LOCK_GROUP = "%TURN"  # whose progress on a topic locks it against concurrent changes
MOVE_PREFIX = "%MOVE%"  # groups whose progress on a queue says what `ddmq move` has copied into it
MOVED_PROPERTY = "moved-from"  # of a copy: SOURCE/TOPIC/QUEUE/OFFSET that it was copied from
LAG_GROUP = "%SPEAKER"  # who holds queue 0 of SCHEDULE_TOPIC in it speaks for what no proxy holds
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # what happened to messages that are traced; RocketMQ's name
TRACE_PREFIX = "trace/"  # settings: by topic, of how many messages one is traced
HOLD_PREFIX = "hold/"  # settings: by topic, since when its delayed messages are held
CHANGE_PREFIX = "change/"  # settings: the last changes by the admin API, by id
OPERATION_PREFIX = "operation/"  # settings: operations that an operator has started, by id
SENDS_TOPIC = "%SENDS"  # on Kafka: entries of sends that are stored once; queue = shard
SENDS_GROUP = SENDS_TOPIC  # whose progress there fences former owners of a shard
DONE_GROUP = "%DONE"  # whose progress on a dead-letter topic says which letters were resent or purged

_OWN_GROUPS = frozenset(
    (
        LEVELS_GROUP, DELAY_GROUP, FIRED_GROUP, OUTCOME_GROUP, CHANGE_LOCK_GROUP, DONE_GROUP, LAG_GROUP,
        TRANSACTION_GROUP, TRANSACTION_DEAD_TOPIC, SENDS_GROUP,
    )
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9_\-%|]+\Z")
_INTERNAL = (RETRY_PREFIX, DLQ_PREFIX, "%", "RMQ_SYS_", SCHEDULE_TOPIC, TRANSACTION_DEAD_TOPIC)


def find_topic_name_error(name: str) -> str | None:
    """Return why `name` is not a valid topic name, or None.

    Valid names have no dot or slash, so none is a path.
    """
    return _find_name_error("topic", name, TOPIC_BYTES_MAX)


def find_group_name_error(name: str) -> str | None:
    """Return why `name` is not a valid consumer group name, or None."""
    if name in _OWN_GROUPS or name.startswith(MOVE_PREFIX):
        return f"group name {name!r} is the system's own; choose another name"
    return _find_name_error("group", name, GROUP_BYTES_MAX)


def _find_name_error(kind: str, name: str, bytes_max: int) -> str | None:
    if not name:
        return f"{kind} name is empty; allowed: 1 to {bytes_max} of letters, digits and _ - % |"
    if len(name) > bytes_max:
        return f"{kind} name has {len(name)} bytes; allowed: at most {bytes_max}"
    if not _NAME.match(name):
        return f"{kind} name {name[:40]!r} has a character that is not a letter, a digit or one of _ - % |"
    return None


def is_internal(topic: str) -> bool:
    """Return whether only the system itself appends to this topic."""
    return topic.startswith(_INTERNAL)


def is_dead_letters(topic: str) -> bool:
    """Return whether this is a topic of dead letters."""
    return topic.startswith(DLQ_PREFIX) or topic == TRANSACTION_DEAD_TOPIC


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the dead-letter topic of `group`.

    The dead-letter topic of transactions is returned unchanged.
    """
    return group if group == TRANSACTION_DEAD_TOPIC else dlq_topic(group)


def retry_qid(cluster: str, queue_id: int) -> str:
    """Return the wire name of a queue of a group's retry topic.

    No queue of another topic has such a name.
    """
    return qid(cluster, RETRY_PREFIX, queue_id)


def qid(cluster: str, broker: str, queue_id: int) -> str:
    """Return the wire name of a queue for log-style engines: `cluster_broker_queue`."""
    return f"{cluster}_{broker}_{queue_id}"
