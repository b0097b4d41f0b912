"""The chain of a subscription: its actions in order, checked once, run for every message.

Every name must be known and unique; the last one is the sink, and there is only one; actions on JSON come
after Json; actions that build a request need AsyncHttp as the sink. Async and NonBlockAsync are accepted
without effect: order keys apply from the read on.

Actions before PullServer are a filter: they decide whether a message is delivered to a pull, but not its
content. A pull always delivers the stored body, so that the changes of Transit or Script are not visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError
from proxy_consumer.core.queue_feed import FILTERED, Filter, Rejection
from proxy_consumer.order_keys.canonical import TooMuchWork
from proxy_consumer.push.actions.config import (
    ALL_ACTIONS,
    MARKERS,
    PUSH_SINKS,
    SINKS,
    PushConfig,
    unknown_action_text,
)
from proxy_consumer.push.actions.job import (
    ASYNCHRONIZED,
    CONTINUE,
    ActionJob,
    ActionOutcome,
    Ending,
    fail,
    job_of,
)
from proxy_consumer.push.actions.script import Heavy, Script, build_script
from proxy_consumer.push.actions.steps import build_transit, form_params, form_params2, parse, query_params
from proxy_consumer.push.actions.targets import check_http
from proxy_consumer.push.sinks.file import check_file
from proxy_consumer.push.sinks.redis import Commands

NEED_JSON = ("Transit", "QueryParams")
NEED_HTTP = ("QueryParams", "FormParams", "FormParams2")
Step = Callable[[ActionJob], ActionOutcome]


class ActionChain:
    """The actions that a pushed message runs through, in order, and the name of the sink after them."""

    __slots__ = ("_steps", "sink")

    def __init__(self, steps: Sequence[Step], sink: str) -> None:
        self._steps = tuple(steps)
        self.sink = sink

    @property
    def is_idle(self) -> bool:
        """Whether the chain has no steps before the sink."""
        return not self._steps

    def run(self, job: ActionJob) -> ActionOutcome:
        """Run the steps: CONTINUE: a client pulls the message; ASYNCHRONIZED: the push sink sends it;
        otherwise it ends here."""
        try:
            for step in self._steps:
                outcome = step(job)
                if outcome.ending is not Ending.CONTINUE:
                    return outcome
        except TooMuchWork as error:
            return fail(f"too much work: {error}")
        except RecursionError:
            return fail("the JSON is nested too deeply")
        return ASYNCHRONIZED if self.sink in PUSH_SINKS else CONTINUE


def build_chain(actions: Sequence[str], push: PushConfig, heavy: Heavy | None = None) -> ActionChain:
    """Build the chain of these actions. Raises ValueError that names the action or setting, and the allowed
    values.

    `heavy` runs scripts that may take long (script.py); None: such scripts are rejected.
    """
    _check_names(actions)
    _check_order(actions)
    after_json = False
    steps: list[Step] = []
    for name in actions[:-1]:
        if name not in MARKERS:
            steps.append(_build_step(name, push, heavy, after_json=after_json))
        after_json = after_json or name == "Json"
    _check_sink(actions[-1], push, after_json=after_json)
    return ActionChain(steps, actions[-1])


def _check_names(actions: Sequence[str]) -> None:
    for index, name in enumerate(actions):
        if name not in ALL_ACTIONS:
            raise ValueError(f"actions: {unknown_action_text(name)}")
        if name in actions[:index]:
            raise ValueError(f"actions: {name} is listed twice; keep one")
    if {"Script", "Groovy"} <= set(actions) or {"FormParams", "FormParams2"} <= set(actions):
        raise ValueError(f"actions: {', '.join(actions)} has two names for one step; keep one of them")


def _check_order(actions: Sequence[str]) -> None:
    *before, last = actions
    if last not in SINKS:
        raise ValueError(f"actions: {last} is the last; the last must be one of {', '.join(SINKS)}")
    for index, name in enumerate(before):
        if name in SINKS:
            raise ValueError(f"actions: {name} is a sink and must be the last, one sink to a subscription")
        if name in NEED_JSON and "Json" not in before[:index]:
            raise ValueError(f"actions: {name} works on the parsed body; put Json before it")
        if name in NEED_HTTP and last != "AsyncHttp":
            raise ValueError(f"actions: {name} builds a request for AsyncHttp; the sink is {last}")


def _build_step(name: str, push: PushConfig, heavy: Heavy | None, *, after_json: bool) -> Step:
    if name == "Json":
        return parse
    if name == "Transit":
        return build_transit(push.transit)
    if name == "QueryParams":
        return query_params(push.query_params)
    if name == "FormParams":
        return form_params(push.form)
    if name == "FormParams2":
        return form_params2(push.form)
    return build_script(push.script, after_json=after_json, heavy=heavy)


def _check_sink(sink: str, push: PushConfig, *, after_json: bool) -> None:
    if sink == "AsyncHttp":
        check_http(push.http)
    elif sink == "Redis":
        Commands(push.redis, after_json=after_json)
    elif sink == "File":
        check_file(push.file)


def find_error_before_pull(actions: Sequence[str], push: PushConfig) -> str | None:
    """Return why these actions must not be set in front of a pull; None if they may.

    Settings that an earlier release accepted stay in force: a message for which the script is too costly is a
    script error then. Raises ValueError for an invalid script.
    """
    scripts = {"Script", "Groovy"} & set(actions)
    if not scripts or actions[-1] in PUSH_SINKS:
        return None
    checked = Script(push.script, after_json="Json" in actions[: actions.index(scripts.pop())])
    return checked.find_error_before_pull(push.script.body_bytes_max)


class ActionFilter:
    """Filters the messages of a pull subscription by the steps of its chain."""

    tags: frozenset[int] | None = None

    def __init__(self, chain: ActionChain) -> None:
        self._chain = chain

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        """Return why the chain does not let the message pass; None if it is delivered. Never raises."""
        try:
            outcome = self._chain.run(job_of(decode(delivery)))
        except DamagedError as error:
            return Rejection(str(error))
        except Exception as error:  # a failing action must not stop the queue
            return Rejection(f"{type(error).__name__}: {error}")
        if outcome.ending is Ending.CONTINUE:
            return None
        return FILTERED if outcome.ending is Ending.FINISH else Rejection(outcome.reason)


def filter_for_actions(actions: tuple[str, ...], push: PushConfig) -> Filter | None:
    """Build the filter of a subscription's actions; None if they filter nothing.

    A push subscription has none: its runner runs the chain itself.
    """
    if not actions or actions[-1] in PUSH_SINKS:
        return None
    chain = build_chain(actions, push)
    return None if chain.is_idle else ActionFilter(chain)
