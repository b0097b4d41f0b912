"""What a mixed run must keep to, proved from its history. Pure; the rules in prose:

A client cannot know everything: an acknowledgement without an answer may or may not count; one that comes
after its lease ended counts or not by the rules of leases. So each rule says only what must be true
whatever happened unseen. *Term*: a time in which one proxy process held a queue without a break, by the
lines that it logs when queues go. A *chain* is the messages of one key within the group's order scope, in
log order. An ack *may count* unless its lease had been replaced: the same process had given the message
again, and the client had that in hands, before the ack left. An acknowledgement *binds* when it was answered
within the term of its delivery, and, where it carries a lease, before the lease could have ended and with no
failure of a client without leases in between (which ends anybody's lease).

stored       what was answered 0 lies in the log once, where the answer said; nothing else lies there
given        what is given is what lies at that queue and offset, to a group that subscribes to it
order        when a message is given, for each earlier one of its chain an ack that may count had left, or
             it is a dead letter from before. Where the same term had given the earlier one, that
             came after this giving: so no two messages of a key are ever leased in one term
backwards    once a client had a message, no earlier one of its chain is in an answer to a pull sent after
             that, at no proxy and in no term (kit/key_order.py)
completion   in the log's own progress records no message of a chain is finished in a commit before
             that of an earlier one
again        what has a binding ack is in no answer to a pull sent after that ack's answer, at no proxy
lost         at the end every stored message is finished for every group and has an ack that may count, or
             exactly one dead letter; no dead letter has a binding ack that left within its lease
letters      a dead letter names the place of a message with its body; its attempts are those that the
             group's settings lead to, and no more than the deliveries that clients saw or may have
             missed; "failed" needs a failure that was sent, an error text one that was said; it died
             after its first delivery
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

from tests.crash.kit.key_order import KeyDelivery, find_returns
from tests.crash.mixed.history import (
    Delivery,
    Ending,
    Finish,
    History,
    Letter,
    Location,
    Plan,
    Row,
    Settlement,
)

SLACK_S = 0.05  # log lines carry wall time in whole milliseconds
UNKNOWN_CODES = (None, 10, 12)
NEVER = float("inf")
Term = tuple[str, int]  # proxy, life


class Violation:
    """A broken rule; `bodies`: whose histories tell of it."""

    def __init__(self, rule: str, text: str, group: str, *bodies: str) -> None:
        self.rule = rule
        self.text = text
        self.group = group
        self.bodies = bodies

    def __str__(self) -> str:
        return f"{self.rule}: {self.group}: {self.text}" if self.group else f"{self.rule}: {self.text}"


class Evidence:
    """A history made ready to be asked."""

    def __init__(self, history: History, ending: Ending, plans: Sequence[Plan]) -> None:
        self.history = history
        self.ending = ending
        self.plans = {plan.name: plan for plan in plans}
        self.rows = {row.body: row for row in ending.rows}
        self.deliveries: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        self.settlements: dict[tuple[str, str], list[Settlement]] = defaultdict(list)
        self.letters: dict[tuple[str, str], list[Letter]] = defaultdict(list)
        self._acks: dict[tuple[str, str], list[Settlement]] = {}
        for delivery in sorted(history.deliveries, key=lambda each: each.read):
            self.deliveries[delivery.group, delivery.body].append(delivery)
        for settlement in history.settlements:
            self.settlements[settlement.delivery.group, settlement.delivery.body].append(settlement)
        for letter in ending.letters:
            self.letters[letter.group, letter.body].append(letter)
        self._killed_at = {(each.process, each.life): each.at for each in history.kills}
        self._losses: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        for loss in sorted(ending.losses, key=lambda each: each.at):
            self._losses[loss.proxy, loss.group, loss.topic, loss.queue].append(loss.at)

    def acks(self, group: str, body: str) -> list[Settlement]:
        """Those that may count."""
        acks = self._acks.get((group, body))
        if acks is None:
            settlements = self.settlements[group, body]
            acks = self._acks[group, body] = [
                each for each in settlements if each.ack and self._may_count(each)
            ]
        return acks

    def _may_count(self, settlement: Settlement) -> bool:
        delivery = settlement.delivery
        return not delivery.lease or not any(
            later.requested >= delivery.read
            and (later.proxy, later.life) == (delivery.proxy, delivery.life)
            and delivery.life >= 0
            and settlement.at > later.read
            for later in self.deliveries[delivery.group, delivery.body]
        )

    def keeps_queue(self, delivery: Delivery, start: float, until: float) -> bool:
        """Whether the giver held the queue without a break, certainly, from `start` to `until`."""
        if delivery.life < 0 or self._killed_at.get((delivery.proxy, delivery.life), NEVER) <= until:
            return False
        losses = self._losses[delivery.proxy, delivery.group, *delivery.queue]
        return bisect_left(losses, start - SLACK_S) == bisect_right(losses, until + SLACK_S)

    def binds(self, settlement: Settlement) -> bool:
        """See the module."""
        delivery = settlement.delivery
        if (
            not settlement.ack
            or settlement.answered is None
            or not self.keeps_queue(delivery, delivery.requested, settlement.answered)
        ):
            return False
        return not delivery.lease or self.in_time(settlement)

    def in_time(self, settlement: Settlement) -> bool:
        """Whether the lease was there, certainly, when the result was answered."""
        delivery = settlement.delivery
        if settlement.until >= delivery.requested + self.plans[delivery.group].ack_timeout_s:
            return False
        others = (each for each in self.settlements[delivery.group, delivery.body] if not each.ack)
        return not any(
            not each.delivery.lease and each.at < settlement.until and each.until > delivery.requested
            for each in others
        )

    def done_from(self, group: str, body: str) -> float:
        """The earliest moment at which a message may have been done."""
        first_ack = min((each.at for each in self.acks(group, body)), default=NEVER)
        died = min((each.at - SLACK_S for each in self.letters[group, body]), default=NEVER)
        return min(first_ack, died)


def check(history: History, ending: Ending, plans: Sequence[Plan]) -> list[Violation]:
    """Every broken rule."""
    evidence = Evidence(history, ending, plans)
    violations = [*_stored(evidence), *_deliveries(evidence), *_letters(evidence)]
    for plan in plans:
        violations += [*_check_redeliveries(evidence, plan), *_lost(evidence, plan)]
        if plan.scope:
            violations += _chains(evidence, plan)
    return violations


def coverage(history: History, ending: Ending, plans: Sequence[Plan]) -> str:
    """How much there was to prove, for people."""
    evidence = Evidence(history, ending, plans)
    lines = []
    for plan in plans:
        keys = {(row.location[0], row.key) for row in ending.rows if row.location[0] in plan.topics}
        acks = [
            each
            for (group, _), settlements in evidence.settlements.items()
            if group == plan.name
            for each in settlements
            if each.ack
        ]
        binding = sum(map(evidence.binds, acks))
        delivery_counts = [
            len(many) for (group, _), many in evidence.deliveries.items() if group == plan.name
        ]
        dead = sum(letter.group == plan.name for letter in ending.letters)
        lines.append(
            f"{plan.name}: {len(delivery_counts)} messages of {len(keys)} keys, "
            f"given {sum(delivery_counts)} times, {binding} of "
            f"{len(acks)} acknowledgements bind, {dead} dead letters"
        )
    return "\n".join(lines)


# --- what lies in the log, and what is given


def _stored(evidence: Evidence) -> Iterator[Violation]:
    stored_bodies: set[str] = set()
    for row in evidence.ending.rows:
        if row.body in stored_bodies:
            yield Violation("stored", f"{row.body} lies twice, once at {row.location}", "", row.body)
        stored_bodies.add(row.body)
    sent = {each.body: each for each in evidence.history.sent}
    for body, each in sent.items():
        row = evidence.rows.get(body)
        if each.code == 0 and row is None:
            yield Violation("lost", f"{body} was answered 0 and is not in the log", "", body)
        elif row is not None and (each.location or row.location) != row.location:
            yield Violation("stored", f"{body} lies at {row.location}, answered {each.location}", "", body)
        elif row is not None and each.code != 0 and each.code not in UNKNOWN_CODES:
            yield Violation(
                "stored", f"{body} was refused with code {each.code} and lies in the log", "", body
            )
    for body in stored_bodies - set(sent):
        yield Violation("stored", f"{body} was never sent", "", body)


def _deliveries(evidence: Evidence) -> Iterator[Violation]:
    for each in evidence.history.deliveries:
        row, plan = evidence.rows.get(each.body), evidence.plans[each.group]
        if row is None or row.location[0] not in plan.topics:
            yield Violation("given", f"{each.body}, which the group has no message of", each.group, each.body)
        elif each.topic != row.location[0]:
            yield Violation("given", f"{each.body} as of topic {each.topic}", each.group, each.body)
        elif not each.retried and (*each.queue, each.offset) != row.location:
            at = (*each.queue, each.offset)
            yield Violation("given", f"{each.body} at {at}, it lies at {row.location}", each.group, each.body)
        elif each.retried and plan.scope:
            yield Violation("given", f"{each.body} on the retry path", each.group, each.body)


# --- one message


def _check_redeliveries(evidence: Evidence, plan: Plan) -> Iterator[Violation]:
    for (group, body), settlements in list(evidence.settlements.items()):
        if group != plan.name:
            continue
        for ack in settlements:
            if not evidence.binds(ack) or (not ack.delivery.lease and evidence.letters[group, body]):
                continue
            assert ack.answered is not None
            for delivery in evidence.deliveries[group, body]:
                if delivery.requested >= ack.answered:
                    text = (
                        f"{body} was acknowledged, {ack.delivery.number}, and given again, {delivery.number}"
                    )
                    yield Violation("again", text, group, body)


def _lost(evidence: Evidence, plan: Plan) -> Iterator[Violation]:
    for group, location in evidence.ending.unfinished:
        if group == plan.name:
            yield Violation("lost", f"{location} is not finished at the end", group, *_at(evidence, location))
    for row in evidence.ending.rows:
        if row.location[0] not in plan.topics:
            continue
        letters, acks = evidence.letters[plan.name, row.body], evidence.acks(plan.name, row.body)
        if not letters and not acks:
            text = f"{row.body} was neither acknowledged nor buried"
            yield Violation("lost", text, plan.name, row.body)
        elif letters and any(evidence.binds(ack) and evidence.in_time(ack) for ack in acks):
            text = f"{row.body} was acknowledged, and is a dead letter"
            yield Violation("lost", text, plan.name, row.body)


def _at(evidence: Evidence, location: Location) -> list[str]:
    return [row.body for row in evidence.ending.rows if row.location == location]


def _letters(evidence: Evidence) -> Iterator[Violation]:
    unseen: dict[str, int] = defaultdict(int)
    for each in evidence.history.unseen:
        unseen[each.group] += 1
    for (group, body), letters in list(evidence.letters.items()):
        if len(letters) > 1:
            yield Violation("letters", f"{body} has {len(letters)} dead letters", group, body)
        for letter in letters:
            for error in _letter_errors(evidence, letter, unseen[group]):
                yield Violation("letters", f"dead letter of {body}: {error}", group, body)


def _letter_errors(evidence: Evidence, letter: Letter, unseen: int) -> Iterator[str]:
    group, body = letter.group, letter.body
    row, plan = evidence.rows.get(body), evidence.plans.get(group)
    if row is None or plan is None or row.location[0] not in plan.topics:
        yield "there is no such message"
        return
    if letter.location != row.location:
        yield f"it says {letter.location}, the message lies at {row.location}"
    deliveries, settlements = evidence.deliveries[group, body], evidence.settlements[group, body]
    fails = [each for each in settlements if not each.ack]
    if letter.attempts not in plan.attempts():
        yield f"{letter.attempts} attempts, allowed are {plan.attempts()}"
    if letter.attempts > len(deliveries) + unseen:
        yield f"{letter.attempts} attempts, {len(deliveries)} were seen and {unseen} answers missed"
    if letter.reason not in ("failed", "timed-out"):
        yield f"reason {letter.reason!r}"
    if letter.reason == "failed" and not fails:
        yield "nobody failed it"
    if letter.error and letter.error not in {each.reason for each in fails}:
        yield f"nobody said {letter.error!r}"
    if not deliveries and not unseen:
        yield "it was never given"
    elif deliveries and min(each.requested for each in deliveries) > letter.at + SLACK_S:
        yield "it died before it was given"


# --- chains


def _chains(evidence: Evidence, plan: Plan) -> Iterator[Violation]:
    chains: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in sorted(evidence.ending.rows, key=lambda each: each.position):
        topic, queue, _ = row.location
        if topic in plan.topics:
            where = {"queue": (topic, queue), "topic": (topic,), "group": ()}[plan.scope]
            chains[(*where, row.key)].append(row)
    finished = _finished_at(evidence.ending.finishes, plan.name)
    for chain in chains.values():
        if len(chain) > 1:
            yield from _Chain(evidence, plan.name, [row.body for row in chain]).check()
            yield from _completions(plan.name, chain, finished)


def _finished_at(finishes: Sequence[Finish], group: str) -> dict[Location, int]:
    """Where the log first says of each message that it is done."""
    positions: dict[Location, int] = {}
    for each in sorted(finishes, key=lambda each: each.position):
        if each.group == group:
            for offset in range(each.start, each.end):
                positions.setdefault((each.topic, each.queue, offset), each.position)
    return positions


def _completions(group: str, chain: list[Row], finished: dict[Location, int]) -> Iterator[Violation]:
    for before, after in pairwise(chain):
        first, then = finished.get(before.location, NEVER), finished.get(after.location, NEVER)
        if then < first:
            text = f"{after.body} is finished in the log at {then}, before {before.body} at {first}"
            yield Violation("completion", text, group, before.body, after.body)


class _Chain:
    """One key's messages, first to last."""

    def __init__(self, evidence: Evidence, group: str, bodies: list[str]) -> None:
        self._evidence = evidence
        self._group = group
        self._bodies = bodies
        self._deliveries = [evidence.deliveries[group, body] for body in bodies]
        self._done_from = [evidence.done_from(group, body) for body in bodies]

    def check(self) -> Iterator[Violation]:
        latest = list(accumulate(self._done_from, max))
        for index in range(1, len(self._bodies)):
            for delivery in self._deliveries[index]:
                if latest[index - 1] > delivery.read:
                    yield self._early(index, delivery)
                else:
                    yield from self._within_term(index, delivery)
        yield from self._backwards()

    def _early(self, index: int, delivery: Delivery) -> Violation:
        undone = next(at for at in range(index) if self._done_from[at] > delivery.read)
        text = f"{self._bodies[index]} was given, {delivery.number}, before {self._bodies[undone]} was done"
        return Violation("order", text, self._group, self._bodies[undone], self._bodies[index])

    def _within_term(self, index: int, delivery: Delivery) -> Iterator[Violation]:
        """Of earlier messages that this term gave before: each was done between the two givings."""
        for at in range(index):
            before = [
                each
                for each in self._deliveries[at]
                if each.read <= delivery.requested
                and (each.proxy, each.life) == (delivery.proxy, delivery.life)
                and self._evidence.keeps_queue(each, each.requested, delivery.read)
            ]
            if before and not self._done_between(self._bodies[at], before[-1], delivery):
                text = (
                    f"{self._bodies[index]} was given, {delivery.number}, while {self._bodies[at]} was at a "
                    f"client, {before[-1].number}"
                )
                yield Violation("order", text, self._group, self._bodies[at], self._bodies[index])

    def _done_between(self, body: str, first: Delivery, then: Delivery) -> bool:
        if any(letter.at - SLACK_S <= then.read for letter in self._evidence.letters[self._group, body]):
            return True
        return any(
            ack.at < then.read and ack.until > first.requested
            for ack in self._evidence.acks(self._group, body)
            if not ack.delivery.lease or ack.delivery.read > first.requested
        )

    def _backwards(self) -> Iterator[Violation]:
        deliveries = [
            KeyDelivery(index, delivery.requested, delivery.read, f"{self._bodies[index]}, {delivery.number}")
            for index, many in enumerate(self._deliveries)
            for delivery in many
        ]
        for delivery, later in find_returns(deliveries):
            text = f"given {delivery.label}, after {later.label}"
            bodies = self._bodies[delivery.index], self._bodies[later.index]
            yield Violation("backwards", text, self._group, *bodies)
