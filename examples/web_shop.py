"""A web service that stores an order in its database and announces it: both, or neither.

    ddmq serve --data-dir ./data
    pip install starlette uvicorn
    uvicorn --app-dir examples web_shop:app
    curl -X POST localhost:8000/orders -H 'Idempotency-Key: a1' -d '{"item": "two boxes"}'
    curl -X POST localhost:8000/visits -H 'Idempotency-Key: b1' -d '{"page": "/boxes"}'

Send a request again with the same key, as a browser does after a time-out: nothing is stored twice.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ddmq_client.aio import AsyncProducer
from ddmq_client.sql import DecisionTable

decisions = DecisionTable()


def connect() -> sqlite3.Connection:
    """Open the shop's own database."""
    return sqlite3.connect("shop.db", timeout=30)


@asynccontextmanager
async def open_producer(app: Starlette) -> AsyncIterator[None]:
    """Create the tables, and keep one producer as long as the service runs."""
    with connect() as database:
        decisions.create(database)
        database.execute("CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY, item TEXT NOT NULL)")
    # The check tells the server whether an order was committed if this process died in between.
    async with AsyncProducer(
        "127.0.0.1:9613", producer_group="shop", check=decisions.check(connect)
    ) as producer:
        app.state.producer = producer
        yield


async def place_order(request: Request) -> JSONResponse:
    """Store the order and announce it in one transaction."""
    key, item = request.headers["Idempotency-Key"], (await request.json())["item"]
    try:
        async with request.app.state.producer.transaction(reference=f"order {key}") as tx:
            await tx.send("orders", item, key=key)  # durable now, visible after the commit
            with connect() as database:
                database.execute("INSERT INTO orders VALUES (?, ?)", (key, item))
                decisions.commit(database, tx.id)
    except sqlite3.IntegrityError:  # the order exists already; this message was rolled back
        return JSONResponse({"order": key, "repeated": True})
    return JSONResponse({"order": key, "repeated": False}, status_code=201)


async def record_visit(request: Request) -> JSONResponse:
    """Send one message that is stored once, however often the request is repeated within an hour."""
    key = request.headers["Idempotency-Key"]
    sent = await request.app.state.producer.send("visits", await request.body(), idempotency_key=key)
    return JSONResponse({"message": sent.message_id, "repeated": bool(sent.duplicate)})


routes = [
    Route("/orders", place_order, methods=["POST"]),
    Route("/visits", record_visit, methods=["POST"]),
]
app = Starlette(routes=routes, lifespan=open_producer)
