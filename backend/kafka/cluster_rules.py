"""Which settings of a cluster break a promise, and what to set instead. Pure.

Each rule checks one setting of one kind of resource: a topic, a broker, or Kafka's topic of transactions. A
resource whose settings this user may not see is skipped by the rules and reported separately. The replication
factor is no setting in Kafka; here it counts as one, under REPLICAS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from backend.idempotency import WINDOW_MS
from backend.kafka.clients.admin import COORDINATION_RETENTION_MS, RECORD_BYTES_MAX
from backend.kafka.options import KafkaOptions

COPIES = 3  # of everything, where there are brokers for them
IN_SYNC = 2
RESOURCES_NAMED = 5  # by name; of the others how many there are
BATCH_BYTES = "1000000"  # librdkafka's own batch.size
REPLICAS = "replication factor"
BROKER_VERSION = "inter.broker.protocol.version"  # of Kafka 3 and older
BROKER_VERSION_MIN = (3, 3)  # the oldest that is tested
_NEWER_BROKERS = "allowed: Kafka 3.3 or newer, with this setting at 3.3 or higher"
# Kafka 4 states no version to clients. Brokers of 4.3.0 are the first that have this setting, which is never
# empty. KAFKA-20734 is in 4.3.0 to 4.4.0, and no newer release is known.
SETTING_OF_4_3 = "group.coordinator.background.threads"
# Of a value, with all settings of its place, and the number of brokers.
IsViolated = Callable[[str, Mapping[str, str], int], bool]


class Kind(Enum):
    """The use that the engine makes of a topic or broker; each rule applies to some of these kinds."""

    STATE = "compacted system topic"
    COORDINATION = "coordination topic"
    DELAYED = "topic of delayed messages"
    ENTRIES = "topic of entries of sends"
    INNER = "other inner topic"
    CREATED = "topic that was made here"
    OTHERS = "topic of others that is let in"
    TRANSACTIONS = "Kafka's topic of transactions"
    BROKER = "broker"


MESSAGES = frozenset((Kind.DELAYED, Kind.ENTRIES, Kind.INNER, Kind.CREATED))
DDMQ_KINDS = MESSAGES | {Kind.STATE, Kind.COORDINATION}


class CheckedResource(NamedTuple):
    """A topic or a broker with its settings; `settings` None means that this user may not read them.

    `denied`: the rights that this user lacks on a topic, by Kafka's names of the operations.
    """

    name: str
    kind: Kind
    settings: Mapping[str, str] | None
    denied: frozenset[str] = frozenset()


class ClusterFacts(NamedTuple):
    """The checked settings of a cluster.

    `same_prefix_roots`: other installations with the same `topic_prefix`. `feature_level`: the recorded one,
    if it was read.
    """

    cluster_id: str
    brokers: int
    resources: tuple[CheckedResource, ...]
    same_prefix_roots: tuple[str, ...] = ()
    feature_level: int | None = None


class ClusterFinding(NamedTuple):
    """A setting that breaks a promise, with all resources where it does.

    `loses`: acknowledged messages may be lost. `stops`: nothing works.
    """

    resources: tuple[str, ...]
    setting: str
    breaks: str
    remedy: str
    loses: bool
    stops: bool = False

    @property
    def resource_names(self) -> str:
        """A text that names the first resources and states how many more there are."""
        names, more = ", ".join(self.resources[:RESOURCES_NAMED]), len(self.resources) - RESOURCES_NAMED
        return names if more <= 0 else f"{names} and {more} more"

    def __str__(self) -> str:
        return f"{self.resource_names}: {self.setting}: {self.breaks}; {self.remedy}"


class ClusterRule(NamedTuple):
    """One rule: the required value of one setting."""

    kinds: frozenset[Kind]
    setting: str
    is_violated: IsViolated
    value: str
    breaks: str
    loses: bool = False
    remedy: str = ""  # instead of the command that sets the required value


def _to_number(value: str) -> int:
    """Convert the text of a Kafka setting to an integer; -1 means unlimited."""
    try:
        return int(value)
    except ValueError:
        return -1


def _is_below(bound: int) -> IsViolated:
    return lambda value, _, __: _to_number(value) < bound


def _few_copies(value: str, _: Mapping[str, str], brokers: int) -> bool:
    return brokers >= COPIES and _to_number(value) < COPIES


def _few_in_sync(value: str, settings: Mapping[str, str], _: int) -> bool:
    return _to_number(settings.get(REPLICAS, "0")) >= COPIES and _to_number(value) < IN_SYNC


def _in_memory(value: str, settings: Mapping[str, str], _: int) -> bool:
    return _to_number(settings.get(REPLICAS, "0")) == 1 and value != "1"


def _is_shorter(bound: int) -> IsViolated:
    return lambda value, _, __: 0 <= _to_number(value) < bound


def _is_bounded(value: str, _: Mapping[str, str], __: int) -> bool:
    return value != "-1"


_MOVE = (
    "move them to 3 brokers with kafka-reassign-partitions.sh; for topics to come set replication_factor: 3"
    " in backend.yaml"
)


def rules_for(options: KafkaOptions) -> tuple[ClusterRule, ...]:
    """Return the rules that apply to an installation with these options."""
    return (
        *_safety_rules(),
        *_retention_rules(),
        *_message_rules(options),
        _version_rule(),
        *_broker_rules(options),
    )


def _safety_rules() -> tuple[ClusterRule, ...]:
    every = DDMQ_KINDS | {Kind.OTHERS, Kind.TRANSACTIONS}
    return (
        ClusterRule(
            every | {Kind.BROKER},
            "unclean.leader.election.enable",
            lambda value, _, __: value == "true",
            "false",
            "a broker that missed acknowledged messages may become leader: they are lost",
            True,
        ),
        ClusterRule(
            DDMQ_KINDS,
            REPLICAS,
            _few_copies,
            "3",
            "one or two brokers that are lost take what was acknowledged with them",
            remedy=_MOVE,
        ),
        ClusterRule(
            frozenset((Kind.TRANSACTIONS,)),
            REPLICAS,
            _few_copies,
            "3",
            "a broker that is lost may take the state of transactions: retries and delayed messages stop",
            remedy="move it to 3 brokers with kafka-reassign-partitions.sh, and set"
            " transaction.state.log.replication.factor=3 in every broker's server.properties",
        ),
        ClusterRule(
            every,
            "min.insync.replicas",
            _few_in_sync,
            "2",
            "what one broker has alone is acknowledged, and lost with it",
            True,
        ),
        ClusterRule(
            DDMQ_KINDS,
            "flush.messages",
            _in_memory,
            "1",
            "there is one copy, and it is acknowledged before it is on the disk: a power cut may take it",
        ),
    )


def _retention_rules() -> tuple[ClusterRule, ...]:
    state, delayed = frozenset((Kind.STATE,)), frozenset((Kind.DELAYED,))
    coordination = frozenset((Kind.COORDINATION,))
    late = "delayed messages go by age or size before they are due"
    return (
        ClusterRule(
            state,
            "cleanup.policy",
            lambda value, _, __: value != "compact",
            "compact",
            "settings, progress and pending delays go by age, and finished messages come again",
            True,
        ),
        ClusterRule(
            delayed,
            "cleanup.policy",
            lambda value, _, __: value != "delete",
            "delete",
            "of delayed messages with one key only the last is kept",
            True,
        ),
        ClusterRule(delayed, "retention.ms", _is_bounded, "-1", late, True),
        ClusterRule(delayed, "retention.bytes", _is_bounded, "-1", late, True),
        ClusterRule(
            frozenset((Kind.ENTRIES,)),
            "retention.ms",
            _is_shorter(WINDOW_MS),
            str(WINDOW_MS),
            "a message that is sent again within an hour may be stored twice",
        ),
        ClusterRule(
            coordination,
            "retention.ms",
            _is_shorter(COORDINATION_RETENTION_MS),
            str(COORDINATION_RETENTION_MS),
            "who holds which queue is forgotten, and queues change hands without a cause",
        ),
        ClusterRule(
            coordination,
            "retention.bytes",
            _is_bounded,
            "-1",
            "who holds which queue is forgotten, and queues change hands without a cause",
        ),
        ClusterRule(
            frozenset((Kind.ENTRIES, Kind.INNER, Kind.CREATED)),
            "cleanup.policy",
            lambda value, _, __: "compact" in value,
            "delete",
            "of messages with one key only the last is kept",
            True,
        ),
    )


def _message_rules(options: KafkaOptions) -> tuple[ClusterRule, ...]:
    size, system = options.message_bytes_max, frozenset((Kind.STATE, Kind.COORDINATION))
    others, batch = frozenset((Kind.OTHERS,)), _to_number(options.librdkafka.get("batch.size", BATCH_BYTES))
    return (
        ClusterRule(
            others,
            "max.message.bytes",
            _is_below(batch),
            str(batch),
            "under load whole batches of small messages are refused, to be sent again",
            remedy="raise it, or set batch.size under librdkafka in backend.yaml to at most that",
        ),
        ClusterRule(
            others,
            "max.message.bytes",
            lambda value, _, __: _to_number(value) > size,
            str(size),
            "what is larger than topics of ours take is neither retried nor kept as a dead letter, and waits",
            remedy="set body_bytes_max in backend.yaml as high, and max.message.bytes of our inner topics",
        ),
        ClusterRule(
            MESSAGES | {Kind.COORDINATION},
            "message.timestamp.type",
            lambda value, _, __: value == "CreateTime",
            "LogAppendTime",
            "store times are those of the senders' clocks, and retention may take what was just stored",
        ),
        ClusterRule(
            MESSAGES,
            "max.message.bytes",
            _is_below(size),
            str(size),
            f"messages that body_bytes_max ({options.body_bytes_max}) allows are refused",
        ),
        ClusterRule(
            system,
            "max.message.bytes",
            _is_below(RECORD_BYTES_MAX),
            str(RECORD_BYTES_MAX),
            "the progress of a group with many finished messages out of order is refused",
        ),
    )


def _version_rule() -> ClusterRule:
    oldest = ".".join(map(str, BROKER_VERSION_MIN))
    broker = frozenset((Kind.BROKER,))
    breaks = "processes do not start"
    return ClusterRule(broker, BROKER_VERSION, _is_too_old, oldest, breaks, True, _NEWER_BROKERS)


def _broker_rules(options: KafkaOptions) -> tuple[ClusterRule, ...]:
    broker = frozenset((Kind.BROKER,))

    def set_it(setting: str, required: object) -> str:
        return f"set {setting}={required} in every broker's server.properties and start them again one by one"

    def broker_rule(setting: str, is_violated: IsViolated, required: object, breaks: str) -> ClusterRule:
        return ClusterRule(
            broker, setting, is_violated, str(required), breaks, remedy=set_it(setting, required)
        )

    def is_alone(value: str, _: Mapping[str, str], brokers: int) -> bool:
        return brokers >= COPIES and _to_number(value) < IN_SYNC

    rules = [
        broker_rule(
            "transaction.state.log.replication.factor",
            _few_copies,
            COPIES,
            "a broker that is lost may take the state of transactions: retries and delayed messages stop",
        ),
        broker_rule(
            "transaction.state.log.min.isr",
            is_alone,
            IN_SYNC,
            "what became of a transaction may be known to one broker alone, and lost with it",
        ),
        broker_rule(
            "transaction.max.timeout.ms",
            _is_below(options.transaction_timeout_ms),
            options.transaction_timeout_ms,
            "no transaction begins, so nothing is retried or fired",
        ),
        broker_rule(
            "socket.request.max.bytes",
            _is_below(options.message_bytes_max),
            options.message_bytes_max,
            f"messages that body_bytes_max ({options.body_bytes_max}) allows are refused",
        ),
    ]
    if options.replication_factor == 0:
        remedy_text = (
            "set replication_factor: 3 in backend.yaml, or default.replication.factor=3 on every broker"
        )
        rules.append(
            broker_rule(
                "default.replication.factor", _few_copies, COPIES, "topics are made with fewer copies"
            )._replace(remedy=remedy_text)
        )
    if options.min_insync == 0:
        remedy_text = "set min_insync: 2 in backend.yaml, or min.insync.replicas=2 on every broker"
        rules.append(
            broker_rule(
                "min.insync.replicas", is_alone, IN_SYNC, "topics are made that one broker alone answers for"
            )._replace(remedy=remedy_text)
        )
    return tuple(rules)


def find_version_error(resources: Iterable[CheckedResource]) -> str:
    """Return why these brokers are too old, or "". Kafka 4 has no such setting, and is new enough."""
    for resource in resources:
        version = (resource.settings or {}).get(BROKER_VERSION, "")
        if resource.kind is Kind.BROKER and _is_too_old(version, {}, 0):
            return f"broker {resource.name} runs with {BROKER_VERSION}={version}; {_NEWER_BROKERS}"
    return ""


def _is_too_old(version: str, _: Mapping[str, str], __: int) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < BROKER_VERSION_MIN


def find_violations(facts: ClusterFacts, options: KafkaOptions) -> list[ClusterFinding]:
    """Return one finding for each violated rule and value, those that lose messages first."""
    violations = [finding for rule in rules_for(options) for finding in _check_rule(rule, facts, options)]
    hidden = tuple(_name_resource(resource) for resource in facts.resources if resource.settings is None)
    if hidden:
        why = "this user may not see the settings, so they are not checked"
        violations.append(
            ClusterFinding(hidden, "not to be seen", why, "allow it DescribeConfigs there", False)
        )
    if facts.same_prefix_roots:
        breaks = "messages at delay levels are delivered once by each of them"
        remedy = "give each installation a topic_prefix of its own (backend.yaml)"
        own = f"topic_prefix={options.topic_prefix!r}"
        violations.append(
            ClusterFinding(
                tuple(map("installation {}".format, facts.same_prefix_roots)), own, breaks, remedy, False
            )
        )
    violations += _find_marker_loss(facts)
    return sorted(violations, key=lambda each: not each.loses)


def _find_marker_loss(facts: ClusterFacts) -> list[ClusterFinding]:
    """Find the brokers that skip a partition without a leader when they end a transaction."""
    brokers = [
        resource
        for resource in facts.resources
        if resource.kind is Kind.BROKER and SETTING_OF_4_3 in (resource.settings or {})
    ]
    if not brokers:
        return []
    breaks = (
        "if a broker is lost, a transaction may stay open in its partitions, and no message behind it is"
        " delivered (KAFKA-20734)"
    )
    remedy = "use brokers of Kafka 3.3 to 4.2, or end such transactions as docs/kafka.md describes"
    return [ClusterFinding(tuple(map(_name_resource, brokers)), "Kafka 4.3 or newer", breaks, remedy, False)]


def _check_rule(rule: ClusterRule, facts: ClusterFacts, options: KafkaOptions) -> list[ClusterFinding]:
    violating: dict[str, list[CheckedResource]] = {}
    for resource in facts.resources:
        value = (resource.settings or {}).get(rule.setting)
        if value is None or resource.kind not in rule.kinds:
            continue
        assert resource.settings is not None
        if rule.is_violated(value, resource.settings, facts.brokers):
            violating.setdefault(value, []).append(resource)
    return [
        ClusterFinding(
            tuple(map(_name_resource, resources)),
            f"{rule.setting}={value}",
            rule.breaks,
            rule.remedy or _remedy_command(rule, resources, options),
            rule.loses,
        )
        for value, resources in sorted(violating.items())
    ]


def _name_resource(resource: CheckedResource) -> str:
    return f"broker {resource.name}" if resource.kind is Kind.BROKER else f"topic {resource.name}"


def _remedy_command(rule: ClusterRule, resources: Sequence[CheckedResource], options: KafkaOptions) -> str:
    """Return the shell command with which an operator corrects the setting on the first resource."""
    kind = "brokers" if resources[0].kind is Kind.BROKER else "topics"
    name = "" if kind == "brokers" else f" --entity-name {resources[0].name}"
    default = " --entity-default" if kind == "brokers" else ""
    each = ", and so for each" if kind == "topics" and len(resources) > 1 else ""
    return (
        f"run: kafka-configs.sh --bootstrap-server {options.bootstrap} --alter --entity-type {kind}{name}"
        f"{default} --add-config {rule.setting}={rule.value}{each}"
    )
