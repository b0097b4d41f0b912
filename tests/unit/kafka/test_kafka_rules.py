"""Which settings of a cluster are told to break a promise, with which remedy."""

from __future__ import annotations

import pytest

from backend.kafka.cluster_rights import find_denied
from backend.kafka.cluster_rules import (
    BROKER_VERSION,
    REPLICAS,
    SETTING_OF_4_3,
    CheckedResource,
    ClusterFacts,
    ClusterFinding,
    Kind,
    find_version_error,
    find_violations,
)
from backend.kafka.options import KafkaOptions

OPTIONS = KafkaOptions(bootstrap="broker1:9092")
SIZE = str(OPTIONS.message_bytes_max)
SAFE = {
    REPLICAS: "3", "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
    "flush.messages": "9223372036854775807", "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(16 << 20), "retention.ms": "604800000", "retention.bytes": "-1",
}  # fmt: skip
GOOD = {
    Kind.STATE: SAFE | {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"},
    Kind.COORDINATION: SAFE | {"cleanup.policy": "delete", "retention.ms": "3600000"},
    Kind.DELAYED: SAFE | {"cleanup.policy": "delete", "retention.ms": "-1"},
    Kind.ENTRIES: SAFE | {"cleanup.policy": "delete", "retention.ms": "7200000"},
    Kind.INNER: SAFE | {"cleanup.policy": "delete"},
    Kind.CREATED: SAFE | {"cleanup.policy": "delete", "max.message.bytes": SIZE},
    Kind.OTHERS: SAFE | {REPLICAS: "1", "min.insync.replicas": "1", "cleanup.policy": "compact",
                         "message.timestamp.type": "CreateTime", "max.message.bytes": "1048588"},
    Kind.TRANSACTIONS: SAFE | {"cleanup.policy": "compact"},
    Kind.BROKER: {
        "unclean.leader.election.enable": "false", "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2", "transaction.max.timeout.ms": "900000",
        "socket.request.max.bytes": "104857600", "default.replication.factor": "3",
        "min.insync.replicas": "2",
    },
}  # fmt: skip


def check(
    kind: Kind, brokers: int = 3, options: KafkaOptions = OPTIONS, **changed: str
) -> list[ClusterFinding]:
    """What is told of one place that is good but for `changed`."""
    settings = GOOD[kind] | {name.replace("_", "."): value for name, value in changed.items()}
    if "copies" in settings:
        settings[REPLICAS] = settings.pop("copies")
    return find_violations(ClusterFacts("id", brokers, (CheckedResource("one", kind, settings),)), options)


@pytest.mark.parametrize("kind", GOOD)
def test_valid_settings_have_no_finding(kind: Kind) -> None:
    assert check(kind) == []


@pytest.mark.parametrize(
    ("kind", "setting", "value", "required", "loses"),
    [
        (Kind.CREATED, "unclean.leader.election.enable", "true", "false", True),
        (Kind.OTHERS, "unclean.leader.election.enable", "true", "false", True),
        (Kind.TRANSACTIONS, "unclean.leader.election.enable", "true", "false", True),
        (Kind.BROKER, "unclean.leader.election.enable", "true", "false", True),
        (Kind.STATE, "min.insync.replicas", "1", "2", True),
        (Kind.TRANSACTIONS, "min.insync.replicas", "1", "2", True),
        (Kind.STATE, "cleanup.policy", "delete", "compact", True),
        (Kind.STATE, "cleanup.policy", "compact,delete", "compact", True),
        (Kind.STATE, "max.message.bytes", "1048588", str(16 << 20), False),
        (Kind.DELAYED, "retention.ms", "604800000", "-1", True),
        (Kind.DELAYED, "retention.bytes", "1000", "-1", True),
        (Kind.DELAYED, "cleanup.policy", "compact", "delete", True),
        (Kind.COORDINATION, "retention.ms", "60000", "3600000", False),
        (Kind.CREATED, "cleanup.policy", "compact", "delete", True),
        (Kind.ENTRIES, "retention.ms", "60000", "3600000", False),
        (Kind.ENTRIES, "cleanup.policy", "compact", "delete", True),
        (Kind.CREATED, "message.timestamp.type", "CreateTime", "LogAppendTime", False),
        (Kind.INNER, "max.message.bytes", "1048588", SIZE, False),
        (Kind.BROKER, "transaction.state.log.replication.factor", "1", "3", False),
        (Kind.BROKER, "transaction.state.log.min.isr", "1", "2", False),
        (Kind.BROKER, "transaction.max.timeout.ms", "5000", "10000", False),
        (Kind.BROKER, "socket.request.max.bytes", "1000000", SIZE, False),
    ],
)
def test_a_finding_names_the_value_to_set(
    kind: Kind, setting: str, value: str, required: str, loses: bool
) -> None:
    [finding] = check(kind, **{setting: value})
    assert finding.setting == f"{setting}={value}"
    assert f"{setting}={required}" in finding.remedy
    assert finding.loses is loses
    if kind is not Kind.BROKER:
        assert "--bootstrap-server broker1:9092" in finding.remedy
        assert "--entity-name one" in finding.remedy


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.COORDINATION, Kind.DELAYED, Kind.INNER, Kind.CREATED])
def test_copies_are_required_if_there_are_brokers_for_them(kind: Kind) -> None:
    [finding] = check(kind, copies="2", min_insync_replicas="1")
    assert finding.setting == "replication factor=2"
    assert "replication_factor: 3" in finding.remedy
    assert check(kind, 2, copies="2", min_insync_replicas="1") == []


def test_one_copy_is_to_be_on_the_disk() -> None:
    [finding] = check(Kind.CREATED, 1, copies="1", min_insync_replicas="1")
    assert "flush.messages=1" in finding.remedy
    assert check(Kind.CREATED, 1, copies="1", flush_messages="1") == []


def test_defaults_of_brokers_count_without_own_settings() -> None:
    weak = {"default_replication_factor": "1", "min_insync_replicas": "1"}
    assert [each.setting for each in check(Kind.BROKER, **weak)] == [
        "default.replication.factor=1", "min.insync.replicas=1"
    ]  # fmt: skip
    assert check(Kind.BROKER, options=KafkaOptions(replication_factor=3, min_insync=2), **weak) == []
    assert check(Kind.BROKER, 1, **weak) == []


def test_topics_of_others_accept_a_batch_and_no_more_than_own_topics() -> None:
    [finding] = check(Kind.OTHERS, max_message_bytes="500000")
    assert "batch.size under librdkafka" in finding.remedy
    small = KafkaOptions(librdkafka={"batch.size": "500000"})
    assert check(Kind.OTHERS, options=small, max_message_bytes="500000") == []
    [finding] = check(Kind.OTHERS, max_message_bytes=str(16 << 20))
    assert "body_bytes_max" in finding.remedy


def test_many_resources_are_one_finding() -> None:
    settings = GOOD[Kind.CREATED] | {"unclean.leader.election.enable": "true"}
    resources = tuple(CheckedResource(f"t{number}", Kind.CREATED, settings) for number in range(12))
    [finding] = find_violations(ClusterFacts("id", 3, resources), OPTIONS)
    assert finding.resource_names == "topic t0, topic t1, topic t2, topic t3, topic t4 and 7 more"
    assert "for each" in finding.remedy


def test_settings_that_may_not_be_read_are_reported() -> None:
    [finding] = find_violations(ClusterFacts("id", 3, (CheckedResource("one", Kind.CREATED, None),)), OPTIONS)
    assert "DescribeConfigs" in finding.remedy


def test_what_loses_something_comes_first() -> None:
    changed = {"message.timestamp.type": "CreateTime", "cleanup.policy": "compact"}
    assert [each.loses for each in check(Kind.CREATED, **changed)] == [True, False]


def test_missing_rights_on_own_topics_are_reported_with_their_effect() -> None:
    denied = frozenset(("Write", "Alter"))
    facts = ClusterFacts(
        "id",
        3,
        (
            CheckedResource("ddmq.progress", Kind.STATE, {}, denied),
            CheckedResource("orders", Kind.CREATED, {}, frozenset(("Alter",))),
            CheckedResource("theirs", Kind.OTHERS, {}, denied),
        ),
    )
    write, alter = find_denied(facts)
    assert (write.resources, write.stops) == (("topic ddmq.progress",), True)
    assert "no right to Write: nothing can be stored" in str(write)
    assert "--operation Write --topic ddmq.progress" in write.remedy
    assert (alter.resources, alter.stops) == (("topic ddmq.progress", "topic orders"), False)


def test_an_installation_with_the_same_topic_names_is_a_finding() -> None:
    [finding] = find_violations(ClusterFacts("id", 3, (), ("ns2",)), OPTIONS)
    assert finding.resources == ("installation ns2",)
    assert "topic_prefix of its own" in finding.remedy
    assert not finding.loses


@pytest.mark.parametrize(
    ("version", "is_rejected"),
    [
        ("2.8-IV1", True),
        ("3.2-IV0", True),
        ("3.3-IV3", False),
        ("3.9-IV0", False),
        ("10.0", False),
        ("?", False),
    ],
)
def test_brokers_that_are_too_old_are_rejected(version: str, is_rejected: bool) -> None:
    brokers = [
        CheckedResource("1", Kind.BROKER, {}),
        CheckedResource("2", Kind.BROKER, {BROKER_VERSION: version}),
    ]
    error = find_version_error(brokers)
    assert bool(error) == is_rejected
    if is_rejected:
        assert error == (
            f"broker 2 runs with inter.broker.protocol.version={version};"
            " allowed: Kafka 3.3 or newer, with this setting at 3.3 or higher"
        )


def test_brokers_whose_version_is_not_to_be_seen_are_accepted() -> None:
    assert find_version_error([CheckedResource("1", Kind.BROKER, None)]) == ""


def test_brokers_that_may_leave_a_transaction_open_are_reported() -> None:
    older, newer = {"log.dirs": "/data"}, {"log.dirs": "/data", SETTING_OF_4_3: "2"}
    resources = (
        CheckedResource("1", Kind.BROKER, older),
        CheckedResource("2", Kind.BROKER, newer),
        CheckedResource("3", Kind.BROKER, newer),
    )
    [finding] = find_violations(ClusterFacts("id", 3, resources), OPTIONS)
    assert (finding.resources, finding.loses, finding.stops) == (("broker 2", "broker 3"), False, False)
    assert str(finding).startswith("broker 2, broker 3: Kafka 4.3 or newer: if a broker is lost, ")
    assert "KAFKA-20734" in finding.breaks
    assert "3.3 to 4.2" in finding.remedy
