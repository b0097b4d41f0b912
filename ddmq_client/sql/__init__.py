"""Messages and the application's own database, SQLite or PostgreSQL: what must happen once, or together.

    from ddmq_client.sql import DecisionTable, InboxTable, OutboxRelay, OutboxTable

InboxTable     handle a message at most once: a row beside the work, in one SQL transaction
OutboxTable    messages written beside the work; OutboxRelay sends them, in order and once
DecisionTable  how a transaction of the producer ended, as its check finds it

Each works in the SQL transaction that the application has begun, and never commits it: with a DB-API
connection (sqlite3, psycopg and others whose parameters are `?` or `%s`), an SQLAlchemy Connection or a
Session; with an AsyncSession by `await session.run_sync(...)`. docs/transactions.md says when to take which.
"""

from ddmq_client.sql.decisions import DecisionTable
from ddmq_client.sql.inbox import InboxTable
from ddmq_client.sql.outbox import OutboxTable
from ddmq_client.sql.relay import OutboxRelay

__all__ = ["DecisionTable", "InboxTable", "OutboxRelay", "OutboxTable"]
