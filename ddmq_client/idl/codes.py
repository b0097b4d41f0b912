"""Result codes and reserved names of the wire contract, as plain constants.

Clients branch on 0, on 11 to 15, and on everything else; old Java clients take a node out of rotation
on a code outside 11 to 15, so a fault of the message itself never gets BACKEND_FAILED.
"""

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """The values of `code` in Result and DelayResult."""

    OK = 0
    BACKEND_FAILED = 10  # nothing more precise is known
    ILLEGAL_MESSAGE = 11
    TIMED_OUT = 12  # not acknowledged in time; may be stored
    TOPIC_REFUSED = 13  # unknown here and not created, or not allowed for this client
    NO_SUCH_QUEUE = 14  # the backend says that topic or partition does not exist
    BUSY = 15  # rate limit, or the proxy is at a bound
    TAKES_NO_DELAY = 18
    TAKES_ONLY_DELAY = 19
    SHUTTING_DOWN = 20
    NO_SERVICE = 21  # no backend for the topic (any more), or no delay service
    DELAY_ID_MALFORMED = 30
    DELAY_TYPE_UNKNOWN = 31
    DELAY_ACTION_UNKNOWN = 32
    DELAY_TIMESTAMP = 33
    DELAY_SHARD = 34
    DELAY_TIMES = 35
    DELAY_EXPIRE = 36
    DELAY_INTERVAL = 37
    DELAY_BASE = 38


class DurabilityClass(IntEnum):
    """The values of `durability` in Result: the failures that the stored record survives."""

    WRITTEN = 0  # the death of our process
    DURABLE = 1  # the death of the machine
    REPLICATED = 2  # the loss of the machine


Durability = DurabilityClass  # as applications import it


class DelayAction(IntEnum):
    """The values of `action` in DelayMessage; those from 100 on are additions to DDMQ's."""

    ADD = 1
    CANCEL = 2
    RESCHEDULE = 100
    FIRE = 101
    HOLD = 102
    RELEASE = 103


class DelayType(IntEnum):
    """The values of `dmsgtype` of a DelayMessage."""

    DELAY = 2
    LOOP = 3
    EXPONENTIAL_LOOP = 4
    SCHEDULE = 5  # ours


class DelayOutcome(IntEnum):
    """The values of `outcome` of a DelayResult."""

    ADDED = 1
    CANCELLED = 2
    ALREADY_FIRED = 3
    UNKNOWN = 4
    OLDER_THAN_KEPT = 5
    PENDING = 6  # the caller's time ran out first


class ReplyOutcome(IntEnum):
    """The values of `outcome` of a ReplyResponse."""

    STORED = 1
    STORED_BEFORE = 2
    LEASE_OVER = 3
    FINISHED = 4  # whether by this acknowledgement sent before is not known


class TransactionAction(IntEnum):
    """The values of `action` in EndTransactionRequest. RocketMQ uses the same."""

    NOT_KNOWN_YET = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionOutcome(IntEnum):
    """The values of `outcome` of an EndTransactionResponse."""

    COMMITTED = 1
    ROLLED_BACK = 2
    NEVER_THERE = 3
    NO_LONGER_KNOWN = 4
    DEAD_LETTER = 5
    OPEN = 6


OK_TEXT: Final = "OK"
FAILED_PREFIX: Final = "FAILED:"

PRODUCER_PORT: Final = 9613
CONSUMER_PORT: Final = 9713
ADMIN_PORT: Final = 9813
FRAME_BYTES_MAX: Final = 5_000_000

# Properties with a meaning to clients or servers; senders may set them.
PRESSURE_TRAFFIC: Final = "isPressureTraffic"  # "true" or "false"
TRACE_ID: Final = "traceId"
SPAN_ID: Final = "spanId"
CARRERA_HEADERS: Final = "carrera_headers"
IDEMPOTENCY_KEY: Final = "idempotency-key"  # what a second send of the message is recognised by
FROM_CHRONOS: Final = "from_chronos"  # with this same text as its value

# Property names that senders may not use and receivers never see. DELAY alone has an exception: a whole
# number there asks for one of the 18 levels.
DELAY_PROPERTY: Final = "DELAY"
RESERVED_PROPERTIES: Final = frozenset(
    (
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", DELAY_PROPERTY, "RETRY_TOPIC", "REAL_TOPIC",
        "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY",
        "MAX_RECONSUME_TIMES", "CONSUME_START_TIME",
    )
)  # fmt: skip

# Property names that ask for a delay on topics that are told to understand them; elsewhere they mean nothing.
DELAY_DIALECT_PROPERTIES: Final = frozenset(
    (
        "AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT", "AMQ_SCHEDULED_CRON",
        "AMQ_SCHEDULED_ZONE", "x-delay", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
        "deliver-at", "deliver-after", "deliver-cron", "deliver-zone", "deliver-period", "deliver-repeat",
        "deliver-occurrences", "deliver-catch-up",
    )
)  # fmt: skip
