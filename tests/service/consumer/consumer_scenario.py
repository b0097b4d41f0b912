"""Text scenarios of a consumer proxy: events, and behind each its results (docs/testing.md)."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from backend.port import Join
from backend.records import NewRecord
from ddmq.server.admin import keys, offsets
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import CallerError, ConfigError, DdmqError, RemoteError, StorageError
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.core.jobs import unpack_attempts
from tests.service.consumer import fetch_calls
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall, result
from tests.service.consumer.test_retry_path import RetryPathRig

TITLE = "== "
ERRORS: dict[str, DdmqError] = {"disk": StorageError("disk"), "remote": RemoteError("gone")}
REJECTIONS = (CallerError, ConfigError, RemoteError)
FIELDS = {field.name: field.default for field in dataclasses.fields(SubscriptionDefaults)}
Named = dict[str, str]


class WrittenScenario(NamedTuple):
    """One scenario of a file; its `title` is the promise."""

    file: Path
    title: str
    text: str


def read_scenarios(folder: Path) -> Iterator[WrittenScenario]:
    """Every scenario of the folder's files."""
    for file in sorted(folder.glob("*.txt")):
        for section in file.read_text(encoding="utf-8").split(f"\n{TITLE}")[1:]:
            title, _, text = section.partition("\n")
            yield WrittenScenario(file, title, text.strip("\n"))


def to_settings(named: Named) -> dict[str, Any]:
    """Settings of a subscription, each in the type of its field; a tuple has commas."""
    return {name: _to_value(text, FIELDS[name]) for name, text in named.items()}


def _to_value(text: str, default: Any) -> Any:
    if isinstance(default, tuple):
        return tuple(int(item) if item.lstrip("-").isdigit() else item for item in text.split(",") if item)
    if isinstance(default, bool):
        return text == "yes"
    return int(text) if isinstance(default, int) else text


class _OtherMember:
    """A member that is not ours."""

    def assigned(self, assignment: object) -> None: ...
    def revoked(self, queues: object, deadline: float) -> None: ...
    def lost(self, queues: object) -> None: ...


class ConsumerScenario:
    """One run. Each event is a method; the lines that it returns stand behind it after `>`."""

    def __init__(self) -> None:
        self.rig = ConsumerRig()
        self._other: Any = None
        self._drained: Any = None
        self._calls: dict[str, FakeCall] = {}
        self._waiting: dict[str, FakeCall] = {}

    def play(self, line: str) -> list[str]:
        """Play one event and return its results, then the answers of calls that waited."""
        verb, *words = shlex.split(line)
        plain = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            lines = list(getattr(self, f"on_{verb.replace('-', '_')}")(*plain, **named) or ())
        except REJECTIONS as error:
            lines = [f"rejected: {error}"]
        self.rig.settle()
        return [f"> {text}" for text in (*lines, *self._new_answers())]

    def _new_answers(self) -> Iterator[str]:
        for name, call in list(self._waiting.items()):
            if call.answered:
                del self._waiting[name]
                yield f"{name}: {self._show(call)}"

    # --- the proxy, its topics and groups

    def on_proxy(self, **named: str) -> None:
        """Start over with these settings of the proxy."""
        self.rig = ConsumerRig(ConsumerConfig(**{name: int(value) for name, value in named.items()}))

    def on_topic(self, name: str, queues: str = "1") -> None:
        self.rig.topic(name, int(queues))

    def on_grow(self, name: str, queues: str) -> None:
        info = self.rig.backend.topic(name)
        assert info is not None
        self.rig.wait(
            self.rig.backend.put_topic(dataclasses.replace(info, queues=int(queues)), self.rig.deadline())
        )

    def on_subscribe(self, *topics: str, group: str = "G", **settings: str) -> None:
        """Make topics that are missing, and subscribe the group to all of them, from the first message on."""
        queues = int(settings.pop("queues", "1"))
        config = SubscriptionDefaults(**{"start": "first", **to_settings(settings)})
        for topic in topics or ("T",):
            if self.rig.backend.topic(topic) is None:
                self.rig.topic(topic, queues)
            self.rig.subscribe(group, topic, config)

    def on_set(self, topic: str = "T", **settings: str) -> None:
        """Change settings of a subscription of group G, as an operator does."""
        changes = to_settings(settings)
        self.rig.wait(self.rig.service.change_subscription("G", topic, changes))

    def on_delete(self, *topics: str) -> None:
        """Delete subscriptions of group G; without a topic, the group."""
        for topic in topics:
            self.rig.wait(self.rig.service.delete_group("G", topic))
        if not topics:
            self.rig.wait(self.rig.service.delete_group("G"))

    def on_delete_topic(self, name: str) -> None:
        self.rig.wait(self.rig.backend.delete_topic(name, self.rig.deadline()))

    def on_readable(self, name: str, allowed: str) -> None:
        info = self.rig.backend.topic(name)
        assert info is not None
        changed = dataclasses.replace(info, readable=allowed == "yes")
        self.rig.wait(self.rig.backend.put_topic(changed, self.rig.deadline()))

    def on_restart(self) -> None:
        """Kill the proxy and start another one."""
        self.rig.restart()

    def on_lose_queues(self, *topics: str) -> None:
        """The queues of these topics are taken away without a word; the subscription stays a member."""
        for topic in topics:
            subscription = self.rig.subscription(topic)
            subscription.membership.claims.lost(list(subscription.buffer.queues))

    def on_leave(self, *topics: str) -> None:
        """The subscription leaves the group, as after a session that is over; the next pull joins again."""
        for topic in topics or ("T",):
            self.rig.subscription(topic).membership.leave()

    def on_retire(self) -> None:
        """The subscription gives its queues up, as one that nobody uses."""
        self.rig.subscription().leave()

    def on_shop(self) -> None:
        """Key a with three messages, whose head has failed as often as it may, and key b with one."""
        parking = {"order_key": "KEY", "on_dead_letter": "park", "retry_intervals_ms": "100"}
        self.on_subscribe(queues="2", ordered_deliveries_max="2", ack_timeout_ms="10000", **parking)
        self.on_put("a1", "a2")
        self.on_put("a3", queue="1")
        self.on_use_up("a1")
        self.on_put("b1")

    def on_use_up(self, body: str) -> None:
        """Deliver this head twice, and fail it each time."""
        for _ in range(2):
            head = self.rig.pull(count=1)
            assert head.values == [body.encode()]
            self.rig.submit(self._element("fail", head.offsets, head, reason="no such customer"))
            self.rig.advance(0.2)

    def on_levels(self) -> None:
        """Start over with the delay levels beside the proxy, for the retry path."""
        self.rig = RetryPathRig()

    def on_groups(self) -> list[str]:
        return [" ".join(sorted(group.name for group in self.rig.service.groups())) or "none"]

    def on_other_member(self) -> None:
        """Another proxy joins group G on topic T, and gets the queues that are taken from this one."""
        self._other = self.rig.backend.join(Join("G", "T"), _OtherMember())

    def on_depose(self) -> None:
        """The queues are taken from this proxy at once, as after ten seconds of silence."""
        self.rig.backend.depose("G", "T")

    def on_revoke(self) -> None:
        """This proxy is asked for its queues."""
        self.rig.backend.revoke("G", "T", self.rig.clock.monotonic() + 5)

    def on_other_leaves(self) -> None:
        self._other.leave()

    def on_drain(self, seconds: str) -> None:
        self._drained = self.rig.service.drain(self.rig.clock.monotonic() + float(seconds))

    def on_drained(self) -> list[str]:
        return ["yes" if self._drained.done else "no"]

    # --- messages

    def on_send(self, count: str, **named: str) -> None:
        """So many messages; the body of the one at offset 3 of an empty queue is m3, its key is k3."""
        sizes = {name: int(value) for name, value in named.items() if name in ("queue", "size")}
        pressure = named.get("pressure") == "yes"
        self.rig.send(int(count), topic=named.get("topic", "T"), pressure=pressure, **sizes)

    def on_put(self, *messages: str, topic: str = "T", queue: str = "0", times: str = "1") -> None:
        """Messages `key:body`; without a colon the key is the first letter of the body."""
        records = []
        for message in messages * int(times):
            key, colon, body = message.partition(":")
            key, body = (key, body) if colon else (message[0], message)
            delivery = encode(key.encode(), body.encode(), b"", None)
            at_ms = self.rig.clock.wall_ms()
            records.append(NewRecord(topic, int(queue), bytes(16), at_ms, delivery, key.encode()))
        self.rig.wait(self.rig.backend.append(records, self.rig.deadline()))

    def on_lost(self, *numbers: str) -> None:
        """These offsets become gaps."""
        for number in numbers:
            self.rig.backend.lose(self.rig.ref(), int(number))

    def on_expire(self, offset: str) -> None:
        self.rig.backend.expire(self.rig.ref(), int(offset))

    # --- clients

    def on_pull(self, name: str = "it", **named: str) -> list[str]:
        """A pull that is waited for: the clock moves until its answer is there."""
        call = self._calls[name] = self.rig.pull(**self._request(named))
        return [self._show(call)]

    def on_ask(self, *names: str, **named: str) -> list[str]:
        """Pulls, one for each name, that wait until something is there or their time is over."""
        lines = []
        for name in names:
            call = self._calls[name] = self.rig.start_pull(**self._request(named))
            self.rig.settle(lambda call=call: call.answered)  # type: ignore[misc]
            if call.answered:
                lines.append(f"{name}: {self._show(call)}")
            else:
                self._waiting[name] = call
        return lines

    def on_gone(self, name: str) -> None:
        """The client of a pull that waits closes its connection."""
        self._waiting.pop(name).go()

    def on_ack(self, *offsets: str, **named: str) -> list[str]:
        return self._finish("ack", offsets, named)

    def on_fail(self, *offsets: str, **named: str) -> list[str]:
        return self._finish("fail", offsets, named)

    def on_extend(self, name: str = "it") -> list[str]:
        """Extend the lease of a pull's messages."""
        lease = self._calls[name].result.messages[0].leaseId
        return self._submit(result(extendLeases=[lease]), "extend")

    def on_settle(self, kind: str, name: str, *chosen: str, **named: str) -> list[str]:
        """Report messages of a pull by the call of our own clients: success, fail, return or extend."""
        call = self._calls[name]
        numbers = [int(each) for each in chosen] or call.offsets
        lease = call.result.messages[0].leaseId + int(named.pop("wrong_lease", 0))
        element = IDL.ConsumeResult(context=call.result.context, successOffsets=(), failOffsets=())
        setattr(element, f"{kind}Offsets", numbers)
        setattr(element, f"{kind}Leases", [lease] * len(numbers))
        if "delays" in named:
            element.failDelaysMs = [int(named["delays"])] * len(numbers)
        if "reason" in named:
            element.failReasons = [named["reason"]] * len(numbers)
        answer = self._send("settle", request=IDL.SettleRequest(result=element)).result
        return [f"late: {' '.join(map(str, each.offsets))}" for each in answer.late]

    def on_stops(self, client: str) -> None:
        """A client of ours says that it stops."""
        self._send("settle", request=IDL.SettleRequest(groupId=b"G", clientId=client.encode(), leave=True))

    def on_pull_over(self, peer: str, client: str = "", group: str = "G") -> None:
        """A pull over the connection of this peer; without a name, of an old client."""
        named = client.encode() or None
        request = IDL.PullRequest(groupId=group.encode(), topic=b"T", clientId=named)
        call = FakeCall("pull", METHODS["pull"].args[0](request=request))
        call.peer = peer
        self.rig.handlers["pull"](call)

    def on_close(self, peer: str) -> None:
        on_closed = self.rig.service.service().on_closed
        assert on_closed is not None
        on_closed(peer)

    def on_clients(self, group: str = "G") -> Iterator[str]:
        """The clients that are listed, one a line."""
        for each in self.rig.service.clients(group):
            state = "connected" if each.connected else "gone"
            yield f"{each.client_id} {state}, {each.in_flight} in flight"

    def on_act(self, action: str, *take_away: str) -> Iterator[str]:
        """An operator's command for key a, with the state of its heads."""
        done = keys.act_on_key(
            self.rig.service, "G", action, "a", **({"take_away": True} if take_away else {})
        )
        yield from (["was parked"] if done.get("parked") else [])
        for head in done["heads"]:
            who = f", {head['client']} at {head['address']}" if head["client"] else ""
            left_s = (head["until_ms"] - self.rig.clock.wall_ms()) / 1_000
            who += f" for {left_s:.0f} s" if head["until_ms"] else ""
            yield f"{head['outcome']}: offset {head['offset']} was {head['state']}{who}"

    def _send(self, method: str, **arguments: Any) -> FakeCall:
        call = self.rig.call(method, METHODS[method].args[0](**arguments))
        self.rig.settle(lambda: call.answered)
        return call

    def on_acks(self, *topics: str) -> list[str]:
        """Pull and acknowledge, over these topics in turn, until nothing comes; what came."""
        messages: list[str] = []
        topics = topics or ("T",)
        quiet = 0
        while quiet < len(topics):
            for topic in topics:
                call = self.rig.pull(topic=topic.encode())
                quiet = 0 if call.result.messages else quiet + 1
                messages += map(_show_message, call.result.messages)
                self.rig.submit(self._element("ack", call.offsets, call))
        return [" ".join(messages) or "nothing"]

    def on_fetch(self, consumer: str, *positions: str, **named: str) -> list[str]:
        """A fetch that is waited for. A place is an offset in a queue: T/0:5."""
        call = self._fetch(consumer, positions, named)
        return [self._show_fetch(fetch_calls.finish(self.rig, call))]

    def on_ask_fetch(self, name: str, consumer: str, *positions: str, **named: str) -> None:
        """A fetch that may wait; its answer comes when it is there."""
        self._waiting[name] = self._calls[name] = self._fetch(consumer, positions, named)

    def on_ack_fetched(self, consumer: str, *positions: str, group: str = "G") -> list[str]:
        return (
            [] if fetch_calls.ack(self.rig, _to_offsets(positions), consumer, group) else ["not acknowledged"]
        )

    def on_leave_fetches(self, consumer: str) -> None:
        fetch_calls.start_fetch(self.rig, consumer, leave=True)

    def _fetch(self, consumer: str, positions: tuple[str, ...], named: Named) -> FakeCall:
        numbers = {name: int(text) for name, text in named.items() if name in ("count", "linger")}
        extra_fields = {"clientId": b"me"} if named.get("client") else {}
        group = named.get("group", "G")
        return fetch_calls.start_fetch(
            self.rig, consumer, _to_offsets(positions), group=group, **numbers, **extra_fields
        )

    def _show_fetch(self, call: FakeCall) -> str:
        if call.outcome.success.error:
            return f"error {call.outcome.success.code}: {call.outcome.success.error.decode()}"
        shown = []
        for (topic, queue), one in fetch_calls.shown(call).items():
            messages = "".join(f" {_show_message(message)}" for message in one.messages)
            shown.append(f"{topic}/{queue}{messages}, next {one.nextRequestOffset}")
        return "; ".join(shown) or "nothing"

    def _request(self, named: Named) -> dict[str, Any]:
        request: dict[str, Any] = {}
        for name, text in named.items():
            if name in ("count", "linger"):
                request[name] = int(text)
            elif name == "topic":
                request[name] = None if text == "*" else text.encode()
            elif name == "client":
                request["clientId"] = text.encode()
            elif name == "ack":
                call, *chosen = text.split(",")
                request["result"] = self._element("ack", list(map(int, chosen)), self._calls[call])
            else:
                request[name] = text.encode()
        return request

    def _finish(self, kind: str, words: tuple[str, ...], named: Named) -> list[str]:
        """Offsets, or a pull's name for all that it brought; `of`: the pull whose leases go with offsets."""
        call = self._calls.get(named.pop("of", "") or (words[0] if words else ""))
        chosen = [int(word) for word in words if word.lstrip("-").isdigit()]
        if call is not None and not chosen:
            chosen = call.offsets
        return self._submit(self._element(kind, chosen, call, **named), kind)

    @staticmethod
    def _element(kind: str, chosen: list[int], call: FakeCall | None, **named: str) -> Any:
        lists: dict[str, Any] = {}
        leases = {each.offset: each.leaseId for each in call.result.messages} if call is not None else {}
        if any(leases.values()):
            lists["successLeases" if kind == "ack" else "failLeases"] = [leases[each] for each in chosen]
        if "reason" in named:
            lists["failReasons"] = [named.pop("reason")] * len(chosen)
        if "delays" in named:
            lists["failDelaysMs"] = list(map(int, named.pop("delays").split(",")))
        queue = int(named.pop("queue", 0))
        success, fail = (chosen, ()) if kind == "ack" else ((), chosen)
        element = result(success, fail, queue, named.pop("group", "G"), named.pop("topic", "T"), **lists)
        if call is not None:
            element.context = call.result.context
        return element

    def _submit(self, element: Any, kind: str) -> list[str]:
        call = self.rig.call("submit", METHODS["submit"].args[0](result=element))
        self.rig.settle(lambda: call.answered)
        if not call.answered:
            self._waiting[kind if kind not in self._waiting else f"{kind} again"] = call
            return []
        text = self._show(call)
        return [] if text == "stored" else [text]

    def _show(self, call: FakeCall) -> str:
        if call.method == "fetch":
            return self._show_fetch(call)
        outcome = call.outcome
        if getattr(outcome, "error", None) is not None:
            return f"error {outcome.error.code}"
        if outcome.success is True:
            return "stored"
        answer = outcome.success
        late = "".join(f"; late: {' '.join(map(str, each.offsets))}" for each in answer.late or ())
        if not answer.messages:
            return f"nothing{late}"
        shown = " ".join(map(_show_message, answer.messages))
        retry = "retry " if b"%RETRY%" in answer.context.qid else ""
        return f"{answer.context.topic.decode()}/{retry}{call.queue}: {shown}{late}"

    # --- time, faults, operators

    def on_after(self, seconds: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.rig.advance(float(seconds))

    def on_hold(self) -> None:
        """Writes have no effect and no answer until `release`."""
        self.rig.backend.pause_writes()

    def on_release(self) -> None:
        self.rig.backend.resume_writes()

    def on_break(self, kind: str, times: str = "1") -> None:
        """The next writes fail."""
        self.rig.backend.fail_next(ERRORS[kind], times=int(times))

    def on_park(self, key: str) -> None:
        keys.act_on_key(self.rig.service, "G", "park", key)

    def on_replay(self, key: str) -> None:
        keys.act_on_key(self.rig.service, "G", "replay", key)

    def on_skip(self, key: str) -> None:
        keys.act_on_key(self.rig.service, "G", "skip", key)

    def on_reset(self, topic: str, to: str) -> None:
        offsets.reset(self.rig.backend, self.rig.clock, "G", topic, to, None, False)

    # --- questions

    def on_keys(self) -> Iterator[str]:
        """The blocked keys of group G, one a line."""
        for row in keys.list_blocked_keys(self.rig.service, "G", 20):
            age_s = (self.rig.clock.wall_ms() - row["since_ms"]) / 1_000
            since = f"for {age_s:.0f} s" if row["since_ms"] else "for no time"
            why = f", {row['reason']}" if row["reason"] else ""
            why += f": {row['error']}" if row["error"] else ""
            position = f"{row['topic']}/{row['queue_id']}, offset {row['offset']}"
            tries = f"{row['attempts']} attempts, {row['waiting']} behind it"
            yield f"{row['key']} {row['state']} {since} at {position}, {tries}{why}"

    def on_progress(self, queue: str = "0", topic: str = "T", group: str = "G") -> list[str]:
        view = self.rig.progress(group, int(queue), topic)
        done = "".join(f", done {start} to {end - 1}" for start, end in view.finished)
        counts = {offset: unpack_attempts(packed) for offset, packed in sorted(view.attempts.items())}
        tries = ", ".join(f"{offset} failed {n[0]}, timed out {n[1]}" for offset, n in counts.items())
        return [f"committed {view.committed or 0}{done}" + (f"; {tries}" if tries else "")]

    def on_count(self, name: str, **labels: str) -> list[str]:
        return [f"{self.rig.counted(f'ddmq_{name}', **labels):g}"]

    def on_letters(self) -> Iterator[str]:
        """The dead letters of group G: body, and the properties that say why."""
        batch = self.rig.wait(self.rig.backend.read(self.rig.ref(topic="%DLQ%G"), 0, 100, 1 << 20))
        for letter in map(decode, batch.deliveries):
            properties = {
                name.decode().removeprefix("dead-letter-"): value.decode()
                for name, value in (letter.properties or {}).items()
            }
            shown = (f"{name}={properties[name]}" for name in sorted(properties) if name != "time")
            yield f"{letter.value.decode()}: {', '.join(shown)}"

    def on_lease(self, name: str = "it") -> list[str]:
        """How long the leases of a pull last, as its client was told."""
        return [f"{self._calls[name].result.leaseMs} ms"]

    def on_settings(self, prefix: str) -> list[str]:
        """How many settings the backend has under a prefix."""
        return [str(len(list(self.rig.backend.settings(prefix))))]


def _to_offsets(positions: tuple[str, ...]) -> dict[str, dict[int, int]] | None:
    """Read `T/0:5` as offset 5 of queue 0 of topic T; no place at all is None."""
    offsets: dict[str, dict[int, int]] = {}
    for position in positions:
        topic, queue, offset = position.replace(":", "/").split("/")
        offsets.setdefault(topic, {})[int(queue)] = int(offset)
    return offsets or None


def _show_message(message: Any) -> str:
    """Return its offset, its body unless that follows from it, and its attempt if the client gets that."""
    body = message.value.decode().rstrip(".")
    shown = str(message.offset) if body == f"m{message.offset}" else f"{message.offset}:{body}"
    return shown + (f"*{message.attempt}" if message.attempt else "")
