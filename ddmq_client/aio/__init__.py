"""The asyncio twins: AsyncProducer, AsyncConsumer, AsyncFetchConsumer, with the semantics of the others."""

from __future__ import annotations

from ddmq_client.aio.consumer import AsyncConsumer
from ddmq_client.aio.fetching import AsyncFetchConsumer
from ddmq_client.aio.producer import AsyncProducer
from ddmq_client.aio.transactions import AsyncTransaction

__all__ = ["AsyncConsumer", "AsyncFetchConsumer", "AsyncProducer", "AsyncTransaction"]
