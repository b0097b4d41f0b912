"""Spans of OpenTelemetry for what a producer sends and a consumer hands out and handles.

    from ddmq_client.opentelemetry import OpenTelemetryObserver

    observer = OpenTelemetryObserver()
    with Producer("mq-1:9613", observer=observer) as producer: ...
    Consumer("mq-1:9713", "billing", "orders", handler=handle, observer=observer).run()

One serves any number of clients, those of `ddmq_client.aio` too. Names, kinds and attributes are those of
the semantic conventions for messaging; docs/opentelemetry.md says which. It needs opentelemetry-api; without
an SDK that the application has set up, nothing is recorded, and messages go as they are.

Nothing here stops a message: what goes wrong is logged once, and the message goes on without its span.
"""

from __future__ import annotations

try:
    import opentelemetry.trace  # noqa: F401 - which is another's package
except ImportError as error:
    raise ImportError(
        "ddmq_client.opentelemetry needs opentelemetry-api: pip install 'opentelemetry-api>=1.45,<2'"
    ) from error

from ddmq_client.opentelemetry.spans import OpenTelemetryObserver

__all__ = ["OpenTelemetryObserver"]
