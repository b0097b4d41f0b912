"""Rules of the consumer proxy's methods: what they leave of a call, and what they count and record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ddmq_client.idl import consumer
from ddmq_common.security.callers import Caller, CallerTable
from ddmq_common.security.policy import IdentityEntry, Policy
from ddmq_common.security.quotas import OverQuota, QuotaEntry
from ddmq_rpc.codec import structs
from proxy_consumer.rights import ConsumerRights

C = structs(consumer)
ALLOWED = ("consume own", "consume mine", "create own", "send *", "create *")


def build_rights() -> ConsumerRights:
    """Rules of a proxy that has no groups and no topics, and makes groups on first use."""
    runtime = SimpleNamespace(
        ignored_cell=lambda *_: SimpleNamespace(value=0.0),
        config=SimpleNamespace(auto_create_groups=True),
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        backend=SimpleNamespace(topic=lambda _: None),
    )
    fetches: Any = SimpleNamespace(instances=SimpleNamespace(find_group=lambda _: None), groups={})
    return ConsumerRights(runtime, {}, fetches)  # type: ignore[arg-type]


def build_caller(allow: tuple[str, ...] = ALLOWED, created_per_hour: int = 2) -> Caller:
    table = CallerTable(lambda: 0)
    entry = IdentityEntry(allow=allow, quotas=QuotaEntry(created_per_hour=created_per_hour))
    table.apply(Policy({"app": entry}), {})
    return table.at_name("app")


def result(group: str, **fields: Any) -> Any:
    context = C.Context(groupId=group.encode(), topic=b"mine", qid=b"none_none_0")
    return C.ConsumeResult(context=context, successOffsets=[1], failOffsets=[], **fields)


def call(caller: Caller, request: Any) -> Any:
    return SimpleNamespace(caller=caller, args=SimpleNamespace(request=request))


def test_forbidden_results_are_left_out_and_recorded_one_by_one() -> None:
    records: list[str] = []
    linked = result("own", nextResult=result("theirs", nextResult=result("own")))
    kept = build_rights().keep_allowed(build_caller(), linked, records.append)
    assert (kept.context.groupId, kept.nextResult.context.groupId) == (b"own", b"own")
    assert kept.nextResult.nextResult is None
    assert records == ["identity 'app' lacks the right `consume theirs`"]


def test_no_result_of_a_client_counts_as_forwarded() -> None:
    """Only the mark of the first element is checked, and the first one may be left out."""
    linked = result("theirs", nextResult=result("own", forwardedBy=b"x:1"))
    kept = build_rights().keep_allowed(build_caller(), linked, lambda _: None)
    assert (kept.context.groupId, kept.forwardedBy) == (b"own", None)


def test_each_subscription_that_a_fetch_makes_counts_for_the_quota() -> None:
    request = C.FetchRequest(groupId=b"own", consumerId=b"c", cluster=b"", topics=[b"mine"], exact=True)
    caller = build_caller()
    assert build_rights().find_missing_for_fetch(call(caller, request)) is None
    caller = build_caller((*ALLOWED, "consume *"))
    request.topics = [b"a", b"b", b"c"]
    assert isinstance(build_rights().find_missing_for_fetch(call(caller, request)), OverQuota)


def test_each_topic_that_a_reply_makes_counts_for_the_quota() -> None:
    messages = [C.ReplyMessage(topic=name, body=b"") for name in (b"a", b"b", b"c")]
    request = C.ReplyRequest(context=result("own").context, messages=messages)
    assert isinstance(build_rights().find_missing_for_reply(call(build_caller(), request)), OverQuota)
    request.messages = messages[:2]
    assert build_rights().find_missing_for_reply(call(build_caller(), request)) is None
