"""Actions before PullServer as a filter: they decide whether a message is pulled, never what of it.

Pull always delivers the stored body, so what Transit or Script make of it is not seen by anybody.
"""

from __future__ import annotations

from ddmq_common.delivery import decode
from ddmq_common.errors import DamagedError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.queue_feed import FILTERED, Filter, Refusal
from proxy_consumer.push.actions.chain import ActionChain, build_chain
from proxy_consumer.push.actions.job import Ending, job_of
from proxy_consumer.push.actions.names import push_sink


class ActionFilter:
    """The steps of a pull chain, message by message."""

    tags: frozenset[int] | None = None

    def __init__(self, chain: ActionChain) -> None:
        self._chain = chain

    def judge(self, delivery: bytes) -> Refusal | None:
        """None: deliver it. Never raises."""
        try:
            outcome = self._chain.run(job_of(decode(delivery)))
        except DamagedError as error:
            return Refusal(str(error))
        except Exception as error:  # an action must not take the queue with it
            return Refusal(f"{type(error).__name__}: {error}")
        if outcome.ending is Ending.CONTINUE:
            return None
        return FILTERED if outcome.ending is Ending.FINISH else Refusal(outcome.reason)


def filter_for_actions(config: SubscriptionDefaults) -> Filter | None:
    """The filter of a subscription's actions; None when they keep nothing back from a pull.

    A pushed subscription has none: its runner goes through the chain itself.
    """
    if not config.actions or push_sink(config.actions) is not None:
        return None
    chain = build_chain(config.actions, config.push)
    return None if chain.idle else ActionFilter(chain)
