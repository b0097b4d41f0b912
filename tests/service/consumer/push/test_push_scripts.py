"""Scripts that take long run where they can be stopped; what they were given fails, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import gevent
import msgspec
import pytest

from ddmq_common.delivery import encode
from ddmq_common.metrics.catalogue import SCRIPTS_ENDED
from ddmq_common.metrics.registry import Registry
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.queue_feed import Rejection
from proxy_consumer.push import script_workers
from proxy_consumer.push.actions.config import HttpConfig, PushConfig, ScriptConfig
from proxy_consumer.push.actions.job import ABSENT, ActionJob, Ending
from proxy_consumer.push.actions.script import CHEAP_WORK_MAX, Script, ScriptError
from proxy_consumer.push.actions.steps import parse
from proxy_consumer.push.chain import build_chain, filter_for_actions
from proxy_consumer.push.script_worker import ScriptAnswer
from proxy_consumer.push.script_workers import WORKERS_MAX, ScriptWorkers, _Worker
from tests.service.consumer.push.http_receiver import Receiver
from tests.service.consumer.push.push_rig import PushRig
from tests.support.waits import until

DOUBLED = "[body.a]" + ".map(a, a+a+a+a+a+a+a+a)" * 9 + ".size() > 0"
DIGITS = "[0,1,2,3,4,5,6,7,8,9]"
NESTED = "".join(f"{DIGITS}.all({name}, " for name in "abcdef") + "body.t.contains('zz') == false" + ")" * 6
SPLIT = "body.a.split('').map(c, body.a).size() > 0"
PATTERNS = "body.rules.exists(r, body.text.matches(r))"
HOSTILE = {
    "a body of very many elements": ("size(body.l) > 5", {"l": [[]] * 80_000}),
    "a list gone through again and again": (
        " || ".join(f"{-number} in body.l" for number in range(1, 200)),
        {"l": [1] * 20_000},
    ),
    "texts added to themselves": (DOUBLED, {"a": "x" * 1_000}),
    "nested literal lists": (NESTED, {"t": "x" * 250_000}),
    "a text split and copied": (SPLIT, {"a": "x" * 200_000}),
    "patterns of the message": (PATTERNS, {"text": "ab" * 50_000, "rules": ["(a|b|ab)*c.{900}x$"] * 5_000}),
    "a search for a text of the message": (
        "body.l.exists(x, body.a.contains(body.b))",
        {"a": "a" * 200_000, "b": "a" * 20_000 + "b", "l": [1] * 50},
    ),
}


def message(body: object) -> ActionJob:
    job = ActionJob(b"k", b"", msgspec.json.encode(body), {})
    parse(job)
    return job


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def workers(registry: Registry) -> Iterator[ScriptWorkers]:
    script_workers = ScriptWorkers(registry)
    yield script_workers
    script_workers.close()


@pytest.mark.parametrize("what", HOSTILE)
def test_scripts_that_may_take_long_are_detected_before_they_run(what: str) -> None:
    source, body = HOSTILE[what]
    assert Script(ScriptConfig(filter=source), after_json=True).cost_for(message(body)) > CHEAP_WORK_MAX


def test_typical_scripts_are_cheap() -> None:
    body = {"amount": 5, "status": "paid", "items": [{"sku": "x"}] * 20, "text": "x" * 800}
    for source in (
        "body.amount > 100",
        "body.status == 'paid' && body.amount >= 10",
        "body.items.exists(i, i.sku == 'x')",
        "body.status.matches('^p') && body.text.contains('y')",
        "body.status + '-' + string(body.amount) == 'x-1'",
    ):
        assert Script(ScriptConfig(filter=source), after_json=True).cost_for(message(body)) <= CHEAP_WORK_MAX


@pytest.mark.slow
@pytest.mark.parametrize("what", ["texts added to themselves", "patterns of the message"])
def test_a_script_without_end_is_killed(workers: ScriptWorkers, registry: Registry, what: str) -> None:
    """The hub goes on meanwhile, and the next task finds a process that works."""
    source, body = HOSTILE[what]
    beats: list[float] = []
    heart = gevent.spawn(lambda: [(beats.append(time.monotonic()), gevent.sleep(0.01)) for _ in range(1_000)])
    with pytest.raises(ScriptError, match=r"takes more than|process ended|process hung up"):
        workers.run(ScriptConfig(filter=source), message(body), True)
    heart.kill()
    assert len(beats) > 5
    assert registry.cell(SCRIPTS_ENDED).value == 1
    outcome = workers.run(ScriptConfig(filter="body.a == 1"), message({"a": 1}), True)
    assert outcome.ending is Ending.CONTINUE


@pytest.mark.slow
def test_a_worker_does_what_the_proxy_does(workers: ScriptWorkers) -> None:
    job = message({"a": [1, 2.5, "ä", None, True], "n": 12345678901234567})
    config = ScriptConfig(filter="body.n > 1", transform="{'l': body.a, 'k': key, 'p': properties}")
    assert workers.run(config, job, True).ending is Ending.CONTINUE
    here = message({"a": [1, 2.5, "ä", None, True], "n": 12345678901234567})
    Script(config, after_json=True).run(here)
    assert msgspec.json.decode(job.text_for_sink()) == msgspec.json.decode(here.text_for_sink())
    assert workers.run(ScriptConfig(filter="body.n < 1"), message({"n": 1}), True).ending is Ending.FINISH
    plain = ActionJob(b"k", b"t", b"text", {b"p": b"v"})
    assert (
        workers.run(ScriptConfig(filter="text == 'text' && tag == 't'"), plain, False).ending
        is Ending.CONTINUE
    )
    assert plain.json is ABSENT
    with pytest.raises(ScriptError, match="x"):
        workers.run(ScriptConfig(filter="body.x == 1"), message({"a": 1}), True)


@pytest.mark.slow
def test_processes_are_few_and_reused(workers: ScriptWorkers) -> None:
    config = ScriptConfig(filter="body.a == 1")
    tasks = [gevent.spawn(workers.run, config, message({"a": 1}), True) for _ in range(20)]
    gevent.joinall(tasks, timeout=30, raise_error=True)
    assert len(workers._idle) <= WORKERS_MAX


@pytest.mark.slow
def test_a_task_whose_process_is_killed_gets_another(workers: ScriptWorkers, registry: Registry) -> None:
    """As the system does that is short of memory. What is idle, or at work, is replaced."""
    config, started = ScriptConfig(filter="body.a == 1"), []

    class Killed(_Worker):
        def __init__(self) -> None:
            super().__init__()
            started.append(self)
            if len(started) in mortal:
                os.kill(self._process.pid, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_workers, "_Worker", Killed)
        mortal = {1}
        assert workers.run(config, message({"a": 1}), True).ending is Ending.CONTINUE
        assert registry.cell(SCRIPTS_ENDED).value == 1
        os.kill(started[1]._process.pid, signal.SIGKILL)
        mortal = {3}
        with pytest.raises(ScriptError, match="killed repeatedly from outside"):
            workers.run(config, message({"a": 1}), True)
        assert len(started) == 3
        assert workers.run(config, message({"a": 2}), True).ending is Ending.FINISH


@pytest.mark.slow
def test_a_process_that_hangs_up_is_killed_and_its_task_not_retried(
    workers: ScriptWorkers, registry: Registry
) -> None:
    started = []

    class HungUp(_Worker):
        def __init__(self) -> None:
            super().__init__()
            started.append(self)
            os.kill(self._process.pid, signal.SIGSTOP)

        def run_task(self, task: bytes) -> ScriptAnswer:
            raise EOFError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_workers, "_Worker", HungUp)
        with pytest.raises(ScriptError, match="hung up and was ended"):
            workers.run(ScriptConfig(filter="body.a == 1"), message({"a": 1}), True)
    assert len(started) == 1
    assert started[0].end() == -signal.SIGKILL
    assert registry.cell(SCRIPTS_ENDED).value == 1


@pytest.mark.slow
def test_other_tasks_run_while_a_process_is_killed() -> None:
    worker = _Worker()
    os.kill(worker._process.pid, signal.SIGSTOP)
    beats: list[int] = []
    heart = gevent.spawn(lambda: [(beats.append(0), gevent.sleep(0.001)) for _ in range(100_000)])
    assert worker.end() == -signal.SIGKILL
    heart.kill()
    assert len(beats) > 5


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(?:a.{1,999}b)c", "a(.{0,90}b){9}c", "([ab]{0,300}a){3}c"])
def test_a_pattern_that_leaves_its_automaton_takes_nothing_of_the_proxy(
    workers: ScriptWorkers, pattern: str
) -> None:
    """On the hub each takes seconds of processor time; the worker takes them, or is ended."""
    push = PushConfig(script=ScriptConfig(filter=f"!text.matches('{pattern}')"))
    chain = build_chain(["Script", "File"], push, workers.run)
    text = bytes(random.Random(3).choices(b"ab", k=250_000))
    begin = time.thread_time()
    outcome = chain.run(ActionJob(b"", b"", text, {}))
    assert time.thread_time() - begin < 0.6
    assert outcome.ending is Ending.CONTINUE or "CPU time" in outcome.reason


@pytest.mark.slow
def test_a_hostile_message_fails_and_the_others_are_pushed(rig: PushRig, receiver: Receiver) -> None:
    push = PushConfig(script=ScriptConfig(filter=PATTERNS), http=HttpConfig(urls=(receiver.url(),)))
    rig.pushed("Json", "Script", "FormParams", "AsyncHttp", push=push, retry_intervals_ms=(), retry_steps=0)
    honest = msgspec.json.encode({"text": "abc", "rules": ["x", "b."]})
    rig.put(msgspec.json.encode(HOSTILE["patterns of the message"][1]), honest, honest)
    until(lambda: len(receiver.requests) == 2)
    rig.until_moved(lambda: rig.progress().committed == 3)
    assert rig.outcomes() == {"done": 2, "failed": 1}
    assert any("CPU time" in value for value in rig.dead()[0][1].values())


@pytest.mark.parametrize("what", HOSTILE)
def test_a_costly_script_in_front_of_a_pull_is_rejected(what: str) -> None:
    source, body = HOSTILE[what]
    config = SubscriptionDefaults(
        actions=("Json", "Script", "PullServer"), push=PushConfig(script=ScriptConfig(filter=source))
    )
    refusing = filter_for_actions(config.actions, config.push)
    assert refusing is not None
    rejection = refusing.find_rejection(encode(b"k", msgspec.json.encode(body), b"", {}))
    assert isinstance(rejection, Rejection)
    assert "too much work for a script in front of a pull" in rejection.error
