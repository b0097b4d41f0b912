"""Delay commands on their way: to the delay service's inner topic, for some callers on to their outcome, and
how their callers are answered.

The record goes to that topic while counts, limits and modes are those of the target topic. The command is
written into the record last: one whose caller waits names the reply queue, and that is known only when
outcomes can be heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from backend.records import AppendResult
from ddmq_common.delays.command import (
    ADD,
    ADDED,
    COMMAND_PROPERTY,
    PENDING,
    CommandOutcome,
    DelayCommand,
    encode_command,
)
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.core.delay_requests import echoed_id
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.delay.context import DelayContext
from proxy_producer.flow import Flow
from proxy_producer.pending import PendingSend
from proxy_producer.topics import InternalTopic, KnownTopic

HELD_BY = "a rate limit or the delay service's inner topics"


@dataclass(slots=True)
class ToDelayService:
    """A command that nobody waits for. `topic`: the service's inner one."""

    topic: InternalTopic
    command: DelayCommand
    held_by = HELD_BY

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        """An old delay server has waited already: any topic takes what it sends."""
        return None if self.command.unless_cancelled else topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        send.wait_for(self.topic, partial(write, send, self.command, self.topic))


def write(send: PendingSend, command: DelayCommand, topic: InternalTopic) -> None:
    """Put the command into the record, and send it to its shard."""
    send.record.queue_id = command.shard % topic.queues
    send.record.system = {COMMAND_PROPERTY: encode_command(command)}
    send.send_careful()


@dataclass(slots=True)
class IdAnswers:
    """Old clients are told the id. `adds`: the command brings a message, and changes none."""

    delay_id: bytes
    adds: bool = True

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored()
        replies.delay_stored(send.call, self.delay_id)

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse_delay(send.flow, send.call, send.topic, fault, self.delay_id, self.adds)


@dataclass(slots=True)
class AddedAnswers:
    """Our clients are told the id, and when the message that they add is due."""

    delay_id: bytes
    due_ms: int

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored()
        send.call.reply(replies.delay_decided(self.delay_id, ADDED, self.due_ms, None))

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse_delay(send.flow, send.call, send.topic, fault, self.delay_id, adds=True)


class AwaitedCommand:
    """A command whose caller waits for what it comes to: where it goes, and the answer.

    Once it is stored, running out of time is no code 12 any more: the command will be carried out, so the
    answer is 0 and "pending".
    """

    __slots__ = ("_command", "_context", "_delay_id", "_reply_id", "_send")
    held_by = HELD_BY

    def __init__(self, context: DelayContext, command: DelayCommand, delay_id: bytes) -> None:
        self._context = context
        self._command = command
        self._delay_id = delay_id
        self._reply_id = 0
        self._send: PendingSend

    # --- where it goes

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        return topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        self._send = send
        send.wait_for(self._context.commands, partial(self._context.outcomes.when_ready, self))

    def outcomes_ready(self, fault: SendRefusal | None) -> None:
        """Where outcomes cannot be heard, the command goes all the same and its caller is told "pending"."""
        if self._send.answered:
            return
        place = None if fault is not None else self._context.outcomes.expect(self)
        if place is not None:
            self._command = msgspec.structs.replace(self._command, reply_queue=place[0], reply_id=place[1])
            self._reply_id = place[1]
        write(self._send, self._command, self._context.commands)

    # --- what is answered

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        if self._reply_id:
            send.flow.watch(self)  # until the outcome comes, or the time is up
        else:
            self._tell(PENDING)

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        self._forget()
        adds = self._command.op == ADD
        refuse_delay(send.flow, send.call, send.topic, fault, self._delay_id, adds)

    # --- the outcome

    @property
    def deadline(self) -> float:
        """The send's own; monotonic seconds."""
        return self._send.deadline

    def expire(self) -> None:
        """The command is durable, and nothing was heard of it in time."""
        self._forget()
        self._tell(PENDING)

    def decided(self, outcome: CommandOutcome) -> None:
        """What came of it; the append's own answer may still be on its way."""
        self._reply_id = 0
        if not self._send.answered:
            self._send.flow.unanswered.discard(self._send)
            self._tell(outcome.code, outcome)

    def _tell(self, code: int, outcome: CommandOutcome | None = None) -> None:
        """Code 0, and with it `code`: DelayResult field 100."""
        send = self._send
        send.flow.unanswered.discard(self)
        send.count_stored()
        if code == PENDING:
            send.flow.counts.outcome("pending")
        send.call.reply(replies.delay_decided(self._delay_id, code, self._command.due_ms, outcome))

    def _forget(self) -> None:
        self._context.outcomes.forget(self._reply_id)
        self._reply_id = 0


def refuse_delay(
    flow: Flow, call: Call, topic: KnownTopic | None, fault: SendRefusal, delay_id: bytes, adds: bool
) -> None:
    """Answer a sendDelaySync that is not stored, and count it; by a refused change no message is lost."""
    if adds:
        flow.counts.refused(None if topic is None else topic.name, fault)
    else:
        flow.counts.change_refused(fault)
    call.reply(replies.delay_refused(fault, echoed_id(fault.code, delay_id)))
