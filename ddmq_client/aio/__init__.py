"""The asyncio twins: AsyncProducer and AsyncConsumer, with the semantics of Producer and Consumer."""

from __future__ import annotations

from ddmq_client.aio.consumer import AsyncConsumer
from ddmq_client.aio.producer import AsyncProducer

__all__ = ["AsyncConsumer", "AsyncProducer"]
