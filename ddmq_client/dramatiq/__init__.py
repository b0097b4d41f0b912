"""A Dramatiq broker: actors send their messages to, and workers take them from, a ddmq server.

    import dramatiq
    from ddmq_client.dramatiq import DdmqBroker

    dramatiq.set_broker(DdmqBroker("127.0.0.1:9613", "127.0.0.1:9713"))

Dramatiq itself does the rest: its actors, middleware, worker threads and command line stay as they are.
docs/dramatiq.md describes the options and the guarantees.
"""

from __future__ import annotations

try:
    import dramatiq  # noqa: F401 - which is another's package
except ImportError as error:
    raise ImportError("ddmq_client.dramatiq needs dramatiq: pip install 'dramatiq>=2.2,<3'") from error

from ddmq_client.dramatiq.broker import DdmqBroker

__all__ = ["DdmqBroker"]
