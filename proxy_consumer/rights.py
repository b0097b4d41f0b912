"""The rights that the methods of the consumer proxy need, checked before their handlers (ddmq_rpc/access.py).

Messages are received with `consume` for the group and for the topic. A pull that makes its subscription also
needs `create` for the group. Each element of a linked list of results is checked against its own group and
topic: old methods ignore and count the forbidden elements, `settle` and `reply` reject the call. A forwarded
call (`forwardedBy`) acts for a client whose rights the first proxy has checked, so it is accepted from nodes
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ddmq_client.idl.codes import FROM_CHRONOS, Code
from ddmq_common.names import HEARTBEAT_TOPIC
from ddmq_common.security.callers import Caller
from ddmq_common.security.quotas import OverQuota
from ddmq_rpc.api import Call, MethodRule
from proxy_consumer import answers
from proxy_consumer.fetches.answers import TRUE, reject_fetch
from proxy_consumer.fetches.service import Fetches
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import BROADCASTING, Group

CHRONOS = FROM_CHRONOS.encode()
BOUND_IDS_MAX = (
    100_000  # consumer ids whose identity is remembered; then those that fetch no more are dropped
)


class ConsumerRights:
    """Checks calls by the rules of their callers."""

    def __init__(self, runtime: Runtime, groups: Mapping[bytes, Group], fetches: Fetches) -> None:
        self._runtime = runtime
        self._groups = groups
        self._fetches = fetches
        self._ignored = runtime.ignored_cell("", "right missing")
        self._consumer_ids: dict[tuple[bytes, bytes], str] = {}  # (group, consumer id) → identity

    def build_rules(self) -> dict[str, MethodRule]:
        """Return the rule of each method."""
        return {
            "pull": MethodRule(self.find_missing_for_pull, reject_pull, self.narrow_pull, waits=True),
            "submit": MethodRule(
                self.find_missing_for_submit, reject_pull, self.narrow_submit, finishes=True
            ),
            "settle": MethodRule(self.find_missing_for_settle, reject_pull, finishes=True),
            "reply": MethodRule(self.find_missing_for_reply, reject_reply),
            "getConsumeStats": MethodRule(find_missing_for_stats, reject_stats),
            "fetch": MethodRule(self.find_missing_for_fetch, reject_request, waits=True),
            "ack": MethodRule(self.find_missing_for_ack, self.ignore_ack, finishes=True),
        }

    # --- pull

    def find_missing_for_pull(self, call: Call) -> str | None:
        caller, request = caller_of(call), call.args.request
        if request.result is not None and request.result.forwardedBy is not None:
            return caller.find_missing("node")
        name, topic = request.groupId, request.topic
        if not caller.has_right("consume", name):
            return caller.find_missing("consume", name)
        group = self._groups.get(name)
        if topic:
            if not caller.has_right("consume", topic):
                return caller.find_missing("consume", topic)
            if group is not None and topic in group.subscriptions:
                return None
            return self._find_missing_for_creation(caller, name)
        if group is None:
            group = self._fetches.instances.find_group(name)
        self._runtime.checks_rights = True
        return None if group is None else find_missing_topic(caller, group.subscriptions)

    def _find_missing_for_creation(self, caller: Caller, group: bytes, count: int = 1) -> str | None:
        """Return what a caller lacks to make `count` subscriptions of a group on first use; None also if
        nobody can, or it is an instance of a group that exists."""
        if not self._runtime.config.auto_create_groups or self._fetches.instances.find_group(group):
            return None
        missing = caller.find_missing("create", group)
        for _ in range(count):
            missing = missing or self._count_creation(caller)
        return missing

    def _count_creation(self, caller: Caller) -> OverQuota | None:
        return caller.usage.count_creation(self._runtime.clock.monotonic())

    def narrow_pull(self, call: Call, record: Callable[[str], None]) -> Call:
        request = call.args.request
        if request.result is not None:
            request.result = self.keep_allowed(caller_of(call), request.result, record)
        return call

    # --- results

    def find_missing_for_submit(self, call: Call) -> str | None:
        if call.args.result.forwardedBy is not None:
            return caller_of(call).find_missing("node")
        return None

    def narrow_submit(self, call: Call, record: Callable[[str], None]) -> Call | None:
        result = call.args.result
        if result.forwardedBy is None:
            result = call.args.result = self.keep_allowed(caller_of(call), result, record)
        if result is None:
            call.reply_encoded(answers.SUBMITTED[call.wire])
            return None
        return call

    def find_missing_for_settle(self, call: Call) -> str | None:
        caller, request = caller_of(call), call.args.request
        result = request.result
        if result is not None and result.forwardedBy is not None:
            return caller.find_missing("node")
        while result is not None:
            missing = find_missing_for_context(caller, result.context)
            if missing is not None:
                return missing
            result = result.nextResult
        return caller.find_missing("consume", request.groupId) if request.leave else None

    def keep_allowed(self, caller: Caller, result: Any, record: Callable[[str], None]) -> Any:
        """Return a linked list of results without the elements that the caller may not submit; None if none
        is left. The others are counted and recorded."""
        head = last = None
        while result is not None:
            following = result.nextResult
            missing = find_missing_for_context(caller, result.context)
            if missing is not None:
                self._ignored.value += 1
                record(missing)
            elif last is None:
                head = last = result
                head.forwardedBy = None  # of an element that was not the first, nobody has checked it
            else:
                last.nextResult = result
                last = result
            result = following
        if last is not None:
            last.nextResult = None
        return head

    # --- reply

    def find_missing_for_reply(self, call: Call) -> str | None:
        caller, request = caller_of(call), call.args.request
        if request.forwardedBy is not None:
            return caller.find_missing("node")
        if request.context is None:
            return None  # rejected by its handler
        missing = find_missing_for_context(caller, request.context)
        if missing is not None:
            return missing
        messages = request.messages or ()
        for topic in dict.fromkeys([message.topic or b"" for message in messages]):
            missing = self._find_missing_for_send(caller, topic)
            if missing is not None:
                return missing
        for message in messages:
            if message.properties and CHRONOS in message.properties and not caller.has_right("relay"):
                del message.properties[CHRONOS]
        return None

    def _find_missing_for_send(self, caller: Caller, topic: bytes) -> str | None:
        missing = caller.find_missing("send", topic)
        if missing is not None or topic == HEARTBEAT_TOPIC.encode():
            return missing
        if self._runtime.backend.topic(topic.decode("utf-8", "replace")) is None:
            return caller.find_missing("create", topic) or self._count_creation(caller)
        return None

    # --- fetch and ack

    def find_missing_for_fetch(self, call: Call) -> str | None:
        caller, request = caller_of(call), call.args.request
        missing = caller.find_missing("consume", request.groupId)
        if missing is not None:
            return missing
        group = self._groups.get(request.groupId)
        subscriptions = {} if group is None else group.subscriptions
        topics = dict.fromkeys(request.topics or ())
        topics |= dict.fromkeys(
            topic for topic, each in subscriptions.items()
            if not request.topics or each.config.model != BROADCASTING
        )  # fmt: skip
        missing = find_missing_topic(caller, topics)
        created = topics.keys() - subscriptions.keys()
        if missing is None and created:
            missing = self._find_missing_for_creation(caller, request.groupId, len(created))
        if missing is not None or request.exact:
            return missing
        return self._bind_consumer_id(caller, request.groupId, request.consumerId)

    def find_missing_for_ack(self, call: Call) -> str | None:
        caller, result = caller_of(call), call.args.result
        missing = caller.find_missing("consume", result.groupId)
        return missing or self._find_foreign_id(caller, result.groupId, result.consumerId)

    def _bind_consumer_id(self, caller: Caller, group: bytes, consumer: bytes) -> str | None:
        """Bind a consumer id to the identity that uses it first, as long as it fetches; return why another
        identity may not use it."""
        foreign = self._find_foreign_id(caller, group, consumer)
        if foreign is None:
            if len(self._consumer_ids) >= BOUND_IDS_MAX:
                self._consumer_ids = {
                    key: name for key, name in self._consumer_ids.items() if self._fetches_as(*key)
                }
            self._consumer_ids[group, consumer] = caller.name
        return foreign

    def _find_foreign_id(self, caller: Caller, group: bytes, consumer: bytes) -> str | None:
        owner = self._consumer_ids.get((group, consumer))
        if owner in (None, caller.name) or not self._fetches_as(group, consumer):
            return None
        return f"identity {caller.name!r} may not use a consumer id with which another identity fetches"

    def _fetches_as(self, group: bytes, consumer: bytes) -> bool:
        fetched = self._fetches.groups.get(group)
        return fetched is not None and consumer in fetched.roster.consumer_ids

    def ignore_ack(self, call: Call, missing: str) -> None:
        self._ignored.value += 1
        call.reply_encoded(TRUE[call.wire])


def caller_of(call: Call) -> Caller:
    """Return the caller of a call that is checked, which has one."""
    assert call.caller is not None
    return call.caller


def find_missing_topic(caller: Caller, topics: Iterable[bytes]) -> str | None:
    """Return the sentence about the first topic that the caller may not consume, or None."""
    for topic in topics:
        if not caller.has_right("consume", topic):
            return caller.find_missing("consume", topic)
    return None


def find_missing_for_context(caller: Caller, context: Any) -> str | None:
    """Return what a caller lacks to finish messages of a Context; None also if it is absent, which its
    handler ignores."""
    if context is None:
        return None
    return caller.find_missing("consume", context.groupId) or caller.find_missing("consume", context.topic)


def find_missing_for_stats(call: Call) -> str | None:
    return caller_of(call).find_missing("describe", call.args.request.group)


def code_of(missing: str) -> Code:
    """Return the code of a rejection for a missing right, or for a quota."""
    return Code.BUSY if isinstance(missing, OverQuota) else Code.TOPIC_REFUSED


def reject_pull(call: Call, missing: str) -> None:
    answers.throw_pull_error(call, code_of(missing), missing)


def reject_reply(call: Call, missing: str) -> None:
    call.reply(answers.IDL.ReplyResponse(code=int(code_of(missing)), msg=missing))


def reject_stats(call: Call, missing: str) -> None:
    """Answer as for a group that does not exist."""
    call.reply([])


def reject_request(call: Call, missing: str) -> None:
    reject_fetch(call, code_of(missing), missing)
