"""The asyncio twins of the blocking clients: AsyncProducer, AsyncConsumer, AsyncFetchConsumer, AsyncAdmin."""

from __future__ import annotations

from ddmq_client.aio.admin.client import AsyncAdmin
from ddmq_client.aio.consumer import AsyncConsumer
from ddmq_client.aio.fetching import AsyncFetchConsumer
from ddmq_client.aio.producer import AsyncProducer
from ddmq_client.aio.transactions import AsyncTransaction

__all__ = ["AsyncAdmin", "AsyncConsumer", "AsyncFetchConsumer", "AsyncProducer", "AsyncTransaction"]
