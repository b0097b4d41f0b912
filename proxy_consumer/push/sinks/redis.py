"""Redis: the commands of a message, in order, at one of the hosts; the first error fails the job."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.push.actions.commands import Commands, NoValueError
from proxy_consumer.push.actions.config import RedisConfig
from proxy_consumer.push.actions.targets import AllowList
from proxy_consumer.push.sinks.redis_pool import CommandError, RedisPool
from proxy_consumer.push.verdict import DONE, Pushed, Verdict, VerdictKind


class RedisSink:
    """The sink of one subscription."""

    def __init__(
        self,
        config: SubscriptionDefaults,
        settings: RedisConfig,
        allowed: Callable[[], AllowList],
        random: Random,
    ) -> None:
        self._commands = Commands(settings, after_json="Json" in config.actions)
        self._allowed = allowed
        self._random = random
        self._pool = RedisPool(settings.password, settings.timeout_ms / 1000, settings.connections_max)

    @property
    def fault(self) -> str | None:
        """The first of its hosts that the proxy may not connect to, as push_targets are now."""
        faults = (self._allowed().fault(*host) for host in self._commands.hosts)
        return next((fault for fault in faults if fault is not None), None)

    def close(self) -> None:
        """Close what is kept open."""
        self._pool.close()

    def push(self, pushed: Pushed) -> Verdict:
        """All commands of the message."""
        pushed.requests += 1
        try:
            commands = self._commands.fill(pushed.job)
        except NoValueError as error:
            return Verdict(VerdictKind.FAIL, f"Redis: {error}")
        host = self._random.choice(self._commands.hosts)
        fault = self._allowed().fault(*host)
        if fault is not None:
            return Verdict(VerdictKind.FAIL, f"Redis: {fault}")
        try:
            self._pool.run(host, commands)
        except CommandError as error:
            return Verdict(VerdictKind.FAIL, f"Redis {host[0]}:{host[1]}: {error}")
        return DONE
