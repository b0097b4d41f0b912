"""The assignment table against members and a disk that do as they like, and a naive idea of the aim.

The machine plays the members (who join, leave, release late or not at all), the disk (which answers
grants in any order, or fails them) and the clock. It believes only what decisions tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha1

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.ownership.group import POINTS, Assign, Decision, Grant, GroupMember, Lose, Revoke
from backend.ownership.table import REVOKE_S, AssignmentTable
from backend.port import Sharing
from backend.records import QueueRef
from tests.examples import examples

TOPICS = ["orders", "bills", "mails"]
GROUPS = st.sampled_from(["g", "g", "g", "h"])
MEMBERS = st.sampled_from(["m1", "m2", "m3", "m4"])
ADDRESSES = st.sampled_from(["", "", "host:1", "host:2", "a:9"])
INTERESTS = st.one_of(st.none(), st.none(), st.frozensets(st.integers(0, 6), max_size=4))
ORDER = list(Sharing)


def naive_ring(queue: QueueRef, names: list[str]) -> int:
    """The member with the point that comes next after the queue's own, going around."""

    def point(text: str) -> int:
        return int.from_bytes(sha1(text.encode(), usedforsecurity=False).digest()[:8])

    at = point(f"{queue.topic}/{queue.queue_id}")
    best: tuple[int, int] | None = None
    for index, name in enumerate(names):
        duplicate_number = names[:index].count(name)
        for number in range(POINTS):
            distance = (point(f"{name}#{duplicate_number}#{number}") - at) % (1 << 64)
            if best is None or (distance, index) < best:
                best = (distance, index)
    assert best is not None
    return best[1]


def naive_averagely(index: int, queues: int, members: int) -> range:
    """What member `index` of `members` gets, as RocketMQ writes it."""
    mod = queues % members
    size = 1 if queues <= members else queues // members + (1 if mod > 0 and index < mod else 0)
    start = index * size if mod > 0 and index < mod else index * size + mod
    return range(start, start + min(size, queues - start)) if start < queues else range(0)


class AssignmentMachine(RuleBasedStateMachine):
    @initialize(
        queues=st.integers(2, 6),
        mostly=st.sampled_from(Sharing),
        first=st.lists(st.tuples(st.sampled_from(TOPICS[:2]), MEMBERS), max_size=6),
    )
    def begin(self, queues: int, mostly: Sharing, first: list[tuple[str, str]]) -> None:
        self.mostly = mostly  # the strictest counts: others now and then only
        self.topics = {topic: [QueueRef(topic, 1, n) for n in range(queues)] for topic in TOPICS[:2]}
        self.incarnations = dict.fromkeys(self.topics, 1)
        self.recorded: dict[tuple[str, QueueRef], int] = {}
        self.table = AssignmentTable(
            lambda topic: self.topics.get(topic, []),
            lambda group, queue: self.recorded.get((group, queue), 0),
            rows_max=100,
        )
        self.now = 100.0
        self.members: list[GroupMember] = []  # in the order of joining
        self.owned: dict[GroupMember, dict[QueueRef, int]] = {}
        self.requested: dict[GroupMember, dict[QueueRef, float]] = {}
        self.granting: list[Grant] = []
        self.failed: list[Grant] = []
        self.group_owners: dict[str, str | None] = {}
        self.epochs: dict[tuple[str, QueueRef], int] = {}  # the highest anybody was told
        for topic, process in first:
            self.join("g", topic, process, None, None, "")
        self.everything_comes_to_rest()

    # --- what the members do

    @rule(
        group=GROUPS,
        topic=st.sampled_from([*TOPICS, "orders", "orders"]),
        process=MEMBERS,
        sharing=st.sampled_from([None] * 12 + list(Sharing)),
        interest=INTERESTS,
        name=ADDRESSES,
    )
    def join(
        self,
        group: str,
        topic: str,
        process: str,
        sharing: Sharing | None,
        interest: frozenset[int] | None,
        name: str,
    ) -> None:
        member = GroupMember(group, topic, process, sharing or self.mostly, interest, name)
        self.members.append(member)
        self.owned[member], self.requested[member] = {}, {}
        self.event([group])
        self.take(self.table.join(member, self.now))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        del self.owned[member], self.requested[member]
        self.event([member.group])
        self.take(self.table.leave(member, self.now))
        assert self.table.leave(member, self.now) == []

    @precondition(lambda self: any(self.requested.values()))
    @rule(data=st.data(), all_of_it=st.booleans())
    def release(self, data: st.DataObject, all_of_it: bool) -> None:
        member = data.draw(
            st.sampled_from([member for member, requested in self.requested.items() if requested])
        )
        queues = list(self.requested[member])
        self.release_queues(member, queues if all_of_it else [data.draw(st.sampled_from(queues))])

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topic=st.sampled_from(TOPICS))
    def release_unrequested_queues(self, data: st.DataObject, topic: str) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.release_queues(member, self.topics.get(topic, [])[:2])

    def release_queues(self, member: GroupMember, queues: list[QueueRef]) -> None:
        for queue in queues:
            self.owned[member].pop(queue, None)
            self.requested[member].pop(queue, None)
        self.take(self.table.release(member, queues, self.now))

    # --- what the disk, the clock and the topics do

    @precondition(lambda self: self.granting)
    @rule(data=st.data(), fails=st.sampled_from([False, False, True]), all_of_it=st.booleans())
    def disk_answers(self, data: st.DataObject, fails: bool, all_of_it: bool) -> None:
        one = data.draw(st.sampled_from(self.granting))
        for grant in list(self.granting) if all_of_it else [one]:
            self.answer(grant, fails)

    def answer(self, grant: Grant, fails: bool) -> None:
        self.granting.remove(grant)
        if fails:
            self.failed.append(grant)
            self.table.grant_failed(grant)
            return
        for queue in grant.queues:
            key = (grant.member.group, queue)
            self.recorded[key] = max(grant.epoch, self.recorded.get(key, 0))
        self.take(self.table.granted(grant, self.now))

    @precondition(lambda self: self.failed)
    @rule()
    def retry(self) -> None:
        grant = self.failed.pop()
        self.take(self.table.retry(grant.member.group, grant.member.topic, self.now))

    @rule(seconds=st.sampled_from([0.1, REVOKE_S / 2, REVOKE_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.table.tick(self.now))
        late = [q for requested in self.requested.values() for q, end in requested.items() if end <= self.now]
        assert late == [], "what was not released in time is lost"

    @rule(topic=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def topic_grows(self, topic: str, more: int) -> None:
        queues = self.topics.get(topic, [])
        if not queues:
            self.incarnations[topic] = self.incarnations.get(topic, 0) + 1
        added = [QueueRef(topic, self.incarnations[topic], len(queues) + n) for n in range(more)]
        self.topics[topic] = [*queues, *added][:7]
        self.changed(topic)

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def topic_is_deleted(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        del self.topics[topic]
        self.changed(topic)

    def changed(self, topic: str) -> None:
        self.event(sorted({member.group for member in self.members}))
        self.take(self.table.topic_changed(topic, self.now))

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), epoch=st.integers(1, 50), group=GROUPS)
    def somebody_recorded_an_epoch(self, data: st.DataObject, epoch: int, group: str) -> None:
        """A former writer granted it, say; only while nobody is there."""
        topic = data.draw(st.sampled_from(sorted(self.topics)))
        if not any(member.group == group for member in self.members):
            queue = self.topics[topic][0]
            self.recorded[group, queue] = max(epoch, self.recorded.get((group, queue), 0))

    # --- what decisions mean

    def take(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            member, queues = decision.member, decision.queues
            assert queues, "every decision speaks of something"
            if isinstance(decision, Grant):
                self.check_grant(decision)
                self.granting.append(decision)
            elif isinstance(decision, Assign):
                self.check_assign(decision)
                self.owned[member].update(dict.fromkeys(queues, decision.epoch))
            elif isinstance(decision, Revoke):
                assert decision.deadline == self.now + REVOKE_S
                for queue in queues:
                    assert queue in self.owned[member]
                    assert queue not in self.requested[member]
                    assert self.aim(member.group, queue) is not member, f"{queue} is asked back without need"
                    self.requested[member][queue] = decision.deadline
            elif member in self.owned:
                assert isinstance(decision, Lose)
                for queue in queues:
                    is_deleted = queue not in self.topics.get(queue.topic, [])
                    assert is_deleted or self.requested[member][queue] <= self.now
                    del self.owned[member][queue]
                    self.requested[member].pop(queue, None)

    def check_grant(self, grant: Grant) -> None:
        member = grant.member
        assert member in self.members
        for queue in grant.queues:
            assert grant.epoch > self.recorded.get((member.group, queue), 0)
            assert self.aim(member.group, queue) is member
        for queue in self.topics[member.topic]:
            assert grant.epoch > self.epochs.get((member.group, queue), 0), (
                "above all that the topic has seen"
            )
        sharing = self.sharing(member.group, member.topic)
        for other, queue in self.occupied(member.group):
            assert queue not in grant.queues, f"{queue} is granted while {other} has it"
            if sharing is Sharing.WHOLE_GROUP and self.sharing(member.group, queue.topic) is sharing:
                assert other.process == member.process, "a group's topics at two members"
            if sharing is Sharing.WHOLE_TOPIC and self.aim(member.group, queue) is member:
                assert other is member, "a topic in two pieces"

    def check_assign(self, assign: Assign) -> None:
        member = assign.member
        assert member in self.members, "nobody hears anything after leaving"
        for queue in assign.queues:
            key = (member.group, queue)
            assert queue in self.topics[queue.topic]
            assert all(queue not in owned for who, owned in self.owned.items() if who.group == member.group)
            assert assign.epoch == self.recorded[key], "durable before it is told"
            assert assign.epoch > self.epochs.get(key, 0)
        self.epochs.update({(member.group, queue): assign.epoch for queue in assign.queues})

    def occupied(self, group: str) -> list[tuple[GroupMember, QueueRef]]:
        owned_pairs = [(member, queue) for member, owned in self.owned.items() for queue in owned]
        coming = [
            (grant.member, q) for grant in self.granting for q in grant.queues if self.is_coming(grant, q)
        ]
        return [(member, queue) for member, queue in owned_pairs + coming if member.group == group]

    def is_coming(self, grant: Grant, queue: QueueRef) -> bool:
        """A grant under way to somebody who left, on a line that was given up, binds nobody."""
        return grant.member in self.members and queue in self.topics.get(queue.topic, [])

    # --- the naive idea of who should hold what

    def line(self, group: str, topic: str) -> list[GroupMember]:
        return [member for member in self.members if (member.group, member.topic) == (group, topic)]

    def sharing(self, group: str, topic: str) -> Sharing:
        sharings = [ORDER.index(member.sharing) for member in self.line(group, topic)]
        return ORDER[max(sharings, default=0)]

    def event(self, groups: list[str]) -> None:
        """Something changed: the process that holds a group stays, unless another is in more topics."""
        for group in groups:
            exclusive_topics = [
                topic for topic in TOPICS if self.sharing(group, topic) is Sharing.WHOLE_GROUP
            ]
            lines = [self.line(group, topic) for topic in exclusive_topics]
            members = list(dict.fromkeys(s.process for s in self.members if any(s in line for line in lines)))
            joined = {
                process: sum(
                    any(member.process == process for member in line)
                    for topic, line in zip(exclusive_topics, lines, strict=True)
                    if self.topics.get(topic)
                )
                for process in members
            }
            most = [process for process in members if joined[process] == max(joined.values())]
            if self.group_owners.get(group) not in most:
                self.group_owners[group] = most[0] if most else None

    def aim(self, group: str, queue: QueueRef) -> GroupMember | None:
        sharing = self.sharing(group, queue.topic)
        able = [member for member in self.line(group, queue.topic) if member.can_take(queue)]
        if sharing is Sharing.WHOLE_GROUP:
            able = [member for member in able if member.process == self.group_owners[group]]
        if not able:
            return None
        if sharing in (Sharing.WHOLE_TOPIC, Sharing.WHOLE_GROUP):
            return able[0]
        able.sort(key=lambda member: member.name)
        shared = [
            other
            for other in self.topics[queue.topic]
            if {s for s in self.line(group, queue.topic) if s.can_take(other)} == set(able)
        ]
        at, count = shared.index(queue), len(able)
        if sharing is Sharing.BY_CIRCLE:
            return able[at % count]
        if sharing is Sharing.CONSISTENT_HASH:
            return able[naive_ring(queue, [member.name for member in able])]
        return next(able[i] for i in range(count) if at in naive_averagely(i, len(shared), count))

    # --- always, and at rest

    @invariant()
    def no_queue_has_two_owners(self) -> None:
        owned_pairs = [(member.group, queue) for member, owned in self.owned.items() for queue in owned]
        assert len(owned_pairs) == len(set(owned_pairs))

    @invariant()
    def owners_exclude_queues_requested_back(self) -> None:
        for group, topic in {(member.group, member.topic) for member in self.members}:
            line = self.line(group, topic)
            sure = {
                q: member for member in line for q in self.owned[member] if q not in self.requested[member]
            }
            assert self.table.holders(group, topic) == sure

    @rule()
    def everything_comes_to_rest(self) -> None:
        rounds = 0
        while self.granting or self.failed or any(self.requested.values()):
            rounds += 1
            assert rounds < 50, "it never comes to rest"
            for grant in list(self.granting):
                self.answer(grant, fails=False)
            while self.failed:
                self.retry()
            for member, requested in list(self.requested.items()):
                if requested:
                    self.release_queues(member, list(requested))
        for member in self.members:
            mine = [q for q in self.topics.get(member.topic, []) if self.aim(member.group, q) is member]
            assert sorted(self.owned[member]) == mine, member
        assert not self.table.waiting

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.everything_comes_to_rest()
            for member in list(self.members):
                self.members.remove(member)
                del self.owned[member], self.requested[member]
                self.event([member.group])
                self.take(self.table.leave(member, self.now))
            self.granting.clear()


TestAssignment = AssignmentMachine.TestCase
TestAssignment.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
