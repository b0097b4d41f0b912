"""Which topics of a cluster are visible: ours, admitted ones, and no system topic of another installation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.kafka.admission import TopicAdmission
from backend.kafka.options import Names

OTHER = "teamb.ns2"
SYSTEM = [f"{OTHER}.{suffix}" for suffix in ("settings", "progress", "coordination")]
INNER = [f"{OTHER}.x.-25DELAY-2DWAITING", "teamb.SCHEDULE_TOPIC_XXXX"]


def visible(
    cluster: list[str], *, names: Names | None = None, recorded: frozenset[str] = frozenset()
) -> set[str]:
    return set(TopicAdmission(names or Names()).select_topics(cluster, recorded).values())


def test_system_topics_of_another_installation_are_never_visible() -> None:
    cluster = ["orders", "teamb.orders", *SYSTEM, *INNER]
    assert visible(cluster) == {"orders", "teamb%2Eorders"}
    assert visible(cluster, recorded=frozenset(["teamb%2Ens2%2Esettings"])) == {"orders", "teamb%2Eorders"}


def test_names_similar_to_system_topics_are_visible() -> None:
    cluster = ["user.settings", "user.progress", "plan.coordination", "a.x.b", "my.SCHEDULE_TOPIC_XXXX"]
    assert len(visible(cluster)) == len(cluster)


def test_an_installation_without_a_prefix_hides_one_that_has_the_same_topic_names() -> None:
    cluster = ["orders", "ns2.settings", "ns2.coordination", "ns2.x.-25DELAY", "SCHEDULE_TOPIC_XXXX"]
    admission = TopicAdmission(Names())
    assert set(admission.select_topics(cluster, ()).values()) == {"orders", "SCHEDULE_TOPIC_XXXX"}
    assert admission.find_same_prefix_roots() == ["ns2"]
    assert admission.owner_of("ns2.x.-25RETRY-25g") == "ns2"
    assert admission.owner_of("orders") == ""


@pytest.mark.parametrize(("prefix", "namespace"), [("ns2.", "x"), ("ns2.x.", "ddmq")])
def test_own_inner_topics_are_visible_despite_names_similar_to_those_of_another_installation(
    prefix: str, namespace: str
) -> None:
    names = Names(namespace, prefix)
    kafka_name = names.to_kafka("%DELAY")
    cluster = [
        "ns2.coordination",
        "ns2.settings",
        "ns2.x.-25DELAY",
        names.system_topic("settings"),
        kafka_name,
    ]
    admission = TopicAdmission(names)
    assert admission.select_topics(cluster, ()) == {kafka_name: "%DELAY"}
    assert admission.owner_of_new(kafka_name, cluster) == ""


def test_installations_with_prefixes_of_their_own_are_no_twins() -> None:
    admission = TopicAdmission(Names("ddmq", "teama."))
    admission.select_topics(["teama.ddmq.coordination", "teama.ddmq.settings", *SYSTEM], ())
    assert admission.other_roots == {OTHER}
    assert admission.find_same_prefix_roots() == []


@pytest.mark.parametrize("patterns", [(), ("bills*",)])
def test_recorded_topics_are_visible_whatever_the_patterns(patterns: tuple[str, ...]) -> None:
    names = Names("ddmq", "", patterns)
    cluster = ["orders", "clicks", "ddmq.x.-25RETRY-25g"]
    assert visible(cluster, names=names) == {"%RETRY%g"}
    assert visible(cluster, names=names, recorded=frozenset(["orders"])) == {"orders", "%RETRY%g"}


@given(
    root=st.sampled_from(["ns2", "teamb.ns2", "x", "a.x.b"]),
    suffix=st.one_of(
        st.sampled_from(["settings", "progress", "coordination"]),
        st.from_regex(r"x\.[A-Za-z0-9.\-]{1,20}", fullmatch=True),
    ),
)
def test_no_pattern_and_no_record_makes_a_system_topic_of_others_visible(root: str, suffix: str) -> None:
    topic = f"{root}.{suffix}"
    cluster = {topic, f"{root}.coordination", f"{root}.progress"}
    admission = TopicAdmission(Names())
    name = topic.replace(".", "%2E")
    assert topic not in admission.select_topics(cluster, {name})
    assert admission.owner_of(topic)
