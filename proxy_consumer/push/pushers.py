"""Starts and stops the push runners of a proxy as its subscriptions change.

A runner starts when a subscription has a push sink, without any client, and is replaced when its actions or
their settings change. A subscription whose sink is not allowed at this proxy (a target outside push_targets,
no push_files_dir) gets no runner: its messages stay in their queues, and log and metrics give the reason.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.private_files import reveal_secrets
from proxy_consumer.groups.directory import Directory
from proxy_consumer.push.actions.config import PushConfig, ScriptConfig
from proxy_consumer.push.actions.job import ActionJob, ActionOutcome
from proxy_consumer.push.actions.targets import AllowList
from proxy_consumer.push.verdict import Sink
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import Subscription

if TYPE_CHECKING:
    from proxy_consumer.push.runner import PushRunner
    from proxy_consumer.push.script_workers import ScriptWorkers
    from proxy_consumer.push.sinks.file import FilesFolder

KAFKA_SOURCE, LOG_SOURCE = "KAFKA", "RMQ"
RunnerSettings = tuple[tuple[str, ...], PushConfig]


class Pushers:
    """The push runners of one proxy. Call `start` once the directory has started; the directory then calls
    `on_change`."""

    def __init__(self, runtime: Runtime, directory: Directory, random: Random) -> None:
        self._runtime = runtime
        self._directory = directory
        self._random = random
        self._runners: dict[Subscription, tuple[RunnerSettings, PushRunner]] = {}
        self._errors: dict[Subscription, str] = {}
        self._folder: FilesFolder | None = None
        self._scripts: ScriptWorkers | None = None
        self._targets: tuple[str, ...] = ()
        self._list = AllowList(())
        self._disallowed = runtime.metrics.cell(catalogue.PUSH_HELD, "sink not allowed")
        self._started = self._stopped = False
        kafka = runtime.backend.capabilities.engine == "kafka"
        self._source = KAFKA_SOURCE if kafka else LOG_SOURCE

    def start(self) -> None:
        """Start the runners of all push subscriptions."""
        self._started = True
        self.check_all()

    def stop(self) -> None:
        """Stop all runners: they take no new messages, and pushes in progress end by themselves."""
        self._stopped = True
        for subscription in list(self._runners):
            self._end(subscription)
        if self._scripts is not None:
            self._scripts.close()

    def find_error(self, subscription: Subscription) -> str:
        """Return why a push subscription has no runner here; "" if it has one."""
        return self._errors.get(subscription, "")

    def check_all(self) -> None:
        """Start, replace or stop runners after a change of settings, defaults or the proxy's
        configuration."""
        pushed = {each for each in self._directory.all_subscriptions() if each.pushed}
        for subscription in pushed | set(self._runners) | set(self._errors):
            self._check_subscription(subscription, there=subscription in pushed)

    def on_change(self, name: str, topic: str) -> None:
        """Start, replace or stop the runner of a subscription that was created, changed or removed."""
        if not self._started or self._stopped:
            return
        now = self._directory.find_subscription(name, topic)
        for running in [*self._runners, *self._errors]:
            if running is not now and (running.group.name, running.topic) == (name, topic):
                self._check_subscription(running, there=False)
        if now is not None:
            self._check_subscription(now, there=now.pushed)

    def _check_subscription(self, subscription: Subscription, *, there: bool) -> None:
        """Start, replace or stop the runner of one subscription; `there`: it exists and has a push sink."""
        source, reason = self._find_source(subscription) if there else (None, "")
        running = self._runners.get(subscription)
        if running is not None and (
            not there or running[0] != source or running[1].sink.config_error is not None
        ):
            self._end(subscription)
            running = None
        if running is None:
            self._errors.pop(subscription, None)
            if there and not self._stopped:
                if source is None:
                    self._hold_back(subscription, reason)
                else:
                    self._begin(subscription, source)
        self._disallowed.value = len(self._errors)

    def _find_source(self, subscription: Subscription) -> tuple[RunnerSettings | None, str]:
        """Return the settings that the runner is built from, with the secrets read from their files; or why
        it cannot run."""
        config = subscription.config
        try:
            return (config.actions, reveal_secrets(config.push, self._runtime.config.secrets_dir)), ""
        except DdmqError as error:
            return None, str(error)

    def _hold_back(self, subscription: Subscription, reason: str) -> None:
        self._errors[subscription] = reason
        names = {"group": subscription.group.name, "topic": subscription.topic}
        log.error("push subscription held back", extra=names | {"error": reason})

    def _begin(self, subscription: Subscription, settings: RunnerSettings) -> None:
        from proxy_consumer.push.chain import build_chain  # loads CEL, where actions are used
        from proxy_consumer.push.runner import PushRunner

        try:
            chain = build_chain(*settings, heavy=self._run_heavy)
            sink = self._build_sink(chain.sink, subscription, settings[1])
            reason = sink.config_error
        except (ValueError, DdmqError) as error:
            reason = str(error)
        if reason is not None:
            self._hold_back(subscription, reason)
            return
        group = self._directory.group_named(subscription.group_name)
        runner = PushRunner(self._runtime, group, subscription, chain, sink, self._source)
        self._runners[subscription] = settings, runner
        runner.start()

    def _run_heavy(self, config: ScriptConfig, job: ActionJob, after_json: bool) -> ActionOutcome:
        from proxy_consumer.push.script_workers import ScriptWorkers  # loads CEL, where scripts are used

        if self._scripts is None:
            self._scripts = ScriptWorkers(self._runtime.metrics)
        return self._scripts.run(config, job, after_json)

    def _end(self, subscription: Subscription) -> None:
        _, runner = self._runners.pop(subscription)
        runner.stop()

    def _build_sink(self, name: str, subscription: Subscription, push: PushConfig) -> Sink:
        from proxy_consumer.push.sinks.file import FilesFolder, FileSink
        from proxy_consumer.push.sinks.http import HttpSink
        from proxy_consumer.push.sinks.redis import RedisSink

        config, allowed = self._runtime.config, self._allowed_targets
        if name == "AsyncHttp":
            return HttpSink(self._runtime, lambda: subscription.config.rate_max, push, allowed, self._random)
        if name == "Redis":
            after_json = "Json" in subscription.config.actions
            return RedisSink(push.redis, allowed, self._random, after_json=after_json)
        if self._folder is None:
            self._folder = FilesFolder(config.push_files_dir, config.push_files_bytes_max)
        return FileSink(subscription.config.push.file, self._folder, self._runtime.clock)

    def _allowed_targets(self) -> AllowList:
        """Return the allow-list of the proxy's present configuration."""
        targets = self._runtime.config.push_targets
        if targets != self._targets:
            self._targets, self._list = targets, AllowList(targets)
        return self._list
