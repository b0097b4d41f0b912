"""Pulls, acknowledgements, failures, stats of an independent Thrift client against the real server."""

from __future__ import annotations

import re

import pytest

from tests.interop.apache_client import (
    Client,
    ConsumeResult,
    Context,
    PullError,
    PullRequest,
    PullResponse,
    chained,
    done,
)
from tests.scenarios.real_server import RealServer
from tests.support.waits import until


def fill(producer: Client, topic: str, queues: int = 4, each: int = 5) -> int:
    """`each` messages into every queue; how many."""
    for queue in range(queues):
        for number in range(each):
            body = b"%d/%d" % (queue, number)
            assert producer.send(topic, body, partitionId=queue).code == 0
    return queues * each


def every(consumer: Client, group: str, count: int, **fields: object) -> list[PullResponse]:
    """Answers with `count` messages in all, none of them acknowledged."""
    answers: list[PullResponse] = []
    until(lambda: _one_more(consumer, group, answers, fields) >= count, f"{count} messages")
    return answers


def _one_more(consumer: Client, group: str, answers: list[PullResponse], fields: dict[str, object]) -> int:
    answer = consumer.pull(group, maxLingerTime=100, **fields)
    if answer.messages:
        answers.append(answer)
    return sum(len(each.messages) for each in answers)


def committed(consumer: Client, group: str, topic: str) -> tuple[list[int], list[int]]:
    """Committed and next offsets of all queues, in the order of queues."""
    (stats,) = consumer.stats(group, topic)
    queues = sorted(stats.produceOffsets)
    return [stats.consumeOffsets[qid] for qid in queues], [stats.produceOffsets[qid] for qid in queues]


def nothing_left(consumer: Client, group: str) -> bool:
    return all(not consumer.pull(group, maxLingerTime=100).messages for _ in range(3))


def test_an_answer_is_of_one_queue_and_in_order(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    fill(producer, topic)
    answers = every(consumer, group, 20)
    for answer in answers:
        assert (answer.context.groupId, answer.context.topic) == (group, topic)
        queue = answer.context.qid.rsplit("_", 1)[1].encode()
        offsets = [message.offset for message in answer.messages]
        assert [message.value for message in answer.messages] == [b"%b/%d" % (queue, n) for n in offsets]
        assert offsets == sorted(offsets)
    assert all(re.fullmatch(r"R_default_[^_]+_[0-3]", answer.context.qid) for answer in answers)


def test_acknowledged_with_the_next_pull(producer: Client, consumer: Client, topic: str, group: str) -> None:
    count = fill(producer, topic)
    deliveries: list[tuple[str, int]] = []
    result: ConsumeResult | None = None
    while len(deliveries) < count:
        answer = consumer.pull(group, topic, maxBatchSize=2, maxLingerTime=10_000, result=result)
        assert 1 <= len(answer.messages) <= 2
        deliveries += [(answer.context.qid, message.offset) for message in answer.messages]
        result = done(answer)
    assert len(set(deliveries)) == count
    assert consumer.submit(result) is True
    assert committed(consumer, group, topic) == ([5] * 4, [5] * 4)
    assert nothing_left(consumer, group)


def test_a_chain_of_results_counts_by_each_context(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    fill(producer, topic)
    answers = every(consumer, group, 20)
    chain = chained([done(answer) for answer in answers])
    answer = consumer.pull(group, maxLingerTime=20, result=chain)
    assert answer.messages == []
    assert committed(consumer, group, topic) == ([5] * 4, [5] * 4)


def test_a_chain_by_submit(producer: Client, consumer: Client, topic: str, group: str) -> None:
    fill(producer, topic)
    answers = every(consumer, group, 20)
    assert consumer.submit(chained([done(answer) for answer in answers])) is True
    assert committed(consumer, group, topic) == ([5] * 4, [5] * 4)


def test_a_failed_message_is_redelivered(producer: Client, consumer: Client, topic: str, group: str) -> None:
    fill(producer, topic, queues=1, each=3)
    (answer,) = every(consumer, group, 3)
    context = answer.context
    assert consumer.submit(ConsumeResult(context=context, successOffsets=[0, 2], failOffsets=[1])) is True
    assert committed(consumer, group, topic)[0][0] == 1, "the lowest unfinished one"
    (redelivery,) = every(consumer, group, 1)
    assert [message.offset for message in redelivery.messages] == [1]
    assert redelivery.messages[0].value == b"0/1"
    consumer.submit(done(redelivery))
    assert committed(consumer, group, topic)[0][0] == 3


def test_failed_beyond_its_retries_ends_in_the_dead_letter_topic(
    server: RealServer, producer: Client, consumer: Client, topic: str, group: str
) -> None:
    """After the first delivery and three quick retries (100, 150, 300 ms)."""
    group = f"once-{group}"
    server.admin("POST", "groups", group, body={"topics": [topic], "start": "first", "retry_steps": 0})
    producer.send(topic, b"poison", partitionId=0, key="k", tags="t", properties={"p": "v"})
    for _ in range(4):
        (answer,) = every(consumer, group, 1)
        consumer.submit(done(answer, fail=True))
    until(lambda: committed(consumer, group, topic)[0][0] == 1, "the original is finished")
    server.admin("POST", "groups", f"dead-{group}", body={"topics": [f"%DLQ%{group}"], "start": "first"})
    (dead,) = every(consumer, f"dead-{group}", 1)
    (letter,) = dead.messages
    assert (letter.key, letter.value, letter.tag) == ("k", b"poison", "t")
    required = {"p", "dead-letter-reason", "dead-letter-topic", "dead-letter-queue", "dead-letter-offset"}
    assert required <= set(letter.properties)
    assert (letter.properties["p"], letter.properties["dead-letter-topic"]) == ("v", topic)


def test_by_another_connection_and_late_and_twice(
    server: RealServer, producer: Client, consumer: Client, topic: str, group: str
) -> None:
    fill(producer, topic, queues=1, each=4)
    (answer,) = every(consumer, group, 4)
    with Client(server.ports["consumer"]) as other:
        for _ in range(2):
            assert other.submit(done(answer)) is True
    assert consumer.submit(done(answer, fail=True)) is True, "a fail after the ack changes nothing"
    assert committed(consumer, group, topic)[0][0] == 4
    assert nothing_left(consumer, group)


@pytest.mark.parametrize(
    "context",
    [
        None,
        {},
        {"groupId": "nobody", "topic": "t", "qid": "R_default_x_0"},
        {"qid": "no qid"},
        {"qid": "R_default_x_99"},
        {"topic": "other"},
        {"qid": ""},
    ],
    ids=str,
)
def test_results_of_unknown_groups_are_ignored(
    producer: Client, consumer: Client, topic: str, group: str, context: dict[str, str] | None
) -> None:
    fill(producer, topic, queues=1, each=2)
    (answer,) = every(consumer, group, 2)
    own = {"groupId": group, "topic": topic, "qid": answer.context.qid}
    stated_context = None if context is None else Context(**({**own, **context} if context else {}))
    assert (
        consumer.submit(ConsumeResult(context=stated_context, successOffsets=[0, 1], failOffsets=[])) is True
    )
    assert committed(consumer, group, topic)[0][0] == 0


def test_unknown_offsets_are_ignored(producer: Client, consumer: Client, topic: str, group: str) -> None:
    fill(producer, topic, queues=1, each=2)
    (answer,) = every(consumer, group, 2)
    wild = [-1, 2, 99, 1 << 62, -(1 << 63), (1 << 63) - 1]
    result = ConsumeResult(context=answer.context, successOffsets=wild, failOffsets=wild)
    assert consumer.submit(result) is True
    assert committed(consumer, group, topic)[0][0] == 0
    assert consumer.submit(done(answer)) is True
    assert committed(consumer, group, topic)[0][0] == 2


def test_stats(producer: Client, consumer: Client, topic: str, group: str) -> None:
    fill(producer, topic, each=2)
    (stats,) = consumer.stats(group)
    assert (stats.group, stats.topic) == (group, topic)
    assert set(stats.consumeOffsets) == set(stats.produceOffsets)
    assert sorted(stats.produceOffsets.values()) == [2] * 4
    assert sorted(stats.consumeOffsets.values()) == [0] * 4
    assert len(consumer.stats(group, "")) == 1, "an empty topic is none: all of them"
    assert consumer.stats("nobody") == []
    assert consumer.stats(group, "nothing") == []


def test_unknown_groups_are_answered_empty_at_once(consumer: Client) -> None:
    answer = consumer.pull("nobody-knows-it", maxLingerTime=30_000)
    assert answer.context.set_fields() == {}
    assert answer.messages == []


def test_a_pull_that_names_a_topic_creates_its_group(producer: Client, consumer: Client, topic: str) -> None:
    """It starts last, in the queues that exist then."""
    assert producer.send(topic, b"before").code == 0
    assert consumer.pull(f"new-{topic}", topic).messages == []
    until(lambda: consumer.stats(f"new-{topic}"), "the group")
    assert producer.send(topic, b"after").code == 0
    (answer,) = every(consumer, f"new-{topic}", 1)
    assert [message.value for message in answer.messages] == [b"after"]


def test_clients_of_ddmq_get_its_own_fields(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    producer.send(topic, b"b", partitionId=3)
    (answer,) = every(consumer, group, 1, clientId="me")
    (message,) = answer.messages
    assert set(message.set_fields()) == {
        "value", "offset", "messageId", "leaseId", "attempt", "bornMs", "storedMs", "nextOffset",
    }  # fmt: skip
    assert (message.attempt, message.nextOffset) == (1, 1)


def test_a_waiting_pull_is_woken(server: RealServer, consumer: Client, topic: str, group: str) -> None:
    consumer.send_request("pull", request=PullRequest(groupId=group, maxLingerTime=30_000))
    until(lambda: server.metric("ddmq_waiting_pulls") > 0, "the pull waits")
    with Client(server.ports["producer"]) as producer:
        assert producer.send(topic, b"now").code == 0
    answer = consumer.answer("pull")
    assert [message.value for message in answer.messages] == [b"now"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxBatchSize": -1}, 11),
        ({"maxLingerTime": -1}, 11),
        ({"topic": "a/../b"}, 11),
        ({"groupId": "a/../b"}, 11),
        ({"groupId": "g" * 120}, 11),
        ({"groupId": ""}, 11),
        ({"topic": "t" * 128}, 11),
        ({"filter": "a = ", "filterType": "SQL92"}, 11),
    ],
    ids=str,
)
def test_invalid_pulls_are_rejected(
    consumer: Client, topic: str, fields: dict[str, object], code: int, access: str
) -> None:
    if access == "legacy" and fields == {"groupId": ""}:
        code = 13  # no rule can allow it
    with pytest.raises(PullError) as caught:
        consumer.pull(**{"group": f"r-{topic}"[:100], "topic": "refused", **_named(fields)})
    assert caught.value.code == code
    assert caught.value.text
    assert consumer.pull("nobody").messages == [], "the connection goes on"


def _named(fields: dict[str, object]) -> dict[str, object]:
    return {"group" if name == "groupId" else name: value for name, value in fields.items()}


def test_groups_are_not_created_when_creation_is_off(strict: RealServer, protocol: str) -> None:
    with Client(strict.ports["consumer"], protocol) as consumer:
        assert consumer.pull("fresh", "both", maxLingerTime=30_000).messages == []
        assert consumer.stats("fresh") == []
