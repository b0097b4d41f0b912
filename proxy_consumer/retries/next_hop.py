"""Where a message goes that its subscription could not finish: a step of the retry path, or the dead letters.

Step n waits delay level n + 2: the first 10 s, the sixteenth 2 h. How often and how soon a message is tried
before it is spent, and comes here, is core/jobs.py. Pure.
"""

from __future__ import annotations

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import UpstreamJob, policy_of
from proxy_consumer.retries.headers import RetryHeaders

DEAD_LETTER = 0
LEVEL_BEFORE_FIRST_STEP = 2  # step 1 waits level 3, 10 s; step 16 waits level 18, 2 h


def next_hop(job: UpstreamJob, headers: RetryHeaders, config: SubscriptionDefaults) -> int:
    """The step to take, from 1, or DEAD_LETTER; `headers` count the deliveries of this step already."""
    policy = policy_of(config, retry_queue=headers.steps > 0)
    waited = max(0, policy.steps_beyond(job.fails) - 1)  # what waited in place was a step, too
    steps = headers.steps + waited
    if job.final or config.scope or steps >= config.retry_steps:
        return DEAD_LETTER
    return steps + 1


def level_of(step: int) -> int:
    """The delay level that `step` waits."""
    return LEVEL_BEFORE_FIRST_STEP + step
