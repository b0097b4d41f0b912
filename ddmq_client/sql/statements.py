"""One way to run a statement on whatever the application's connection is.

Statements are written with `:name` parameters, in what SQLite and PostgreSQL have in common. A DB-API module
that takes `?` or `%s` gets its own; SQLAlchemy takes them as they are, in a `text`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from ddmq_client.callables import check_function, check_result
from ddmq_client.errors import OptionError

Rows = Sequence[Sequence[Any]]
_PARAMETER = re.compile(r":([a-z_]+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?\Z")
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_MODULES = {"sqlite": "sqlite", "psycopg": "postgresql", "pg8000": "postgresql"}
TYPES = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"},
    "postgresql": {"serial": "BIGSERIAL PRIMARY KEY", "bytes": "BYTEA"},
}


class Done(NamedTuple):
    """The outcome of a statement: the number of changed rows, and the rows read."""

    changed: int  # rows
    rows: Rows


def table_name(name: str) -> str:
    """Return the name unchanged. Raises OptionError if it would have to be quoted."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise OptionError(f"table={name!r}; allowed: letters, digits and _, with a schema if need be")
    return name


def execute(database: Any, statement: str, **values: object) -> Done:
    """Run one statement, in the SQL transaction that is open or begins with it."""
    if _is_sqlalchemy(database):
        result = database.execute(import_module("sqlalchemy").text(statement), values)
        _check_ran(database, result)
        return Done(result.rowcount, result.fetchall() if result.returns_rows else ())
    mark = _MARKS.get(_paramstyle_of(database), "")
    if not mark:
        raise OptionError(
            f"{type(database)!r} has parameters of style {_paramstyle_of(database)!r}; allowed: a DB-API"
            f" connection with one of {', '.join(_MARKS)}, or SQLAlchemy's Connection or Session"
        )
    names = _PARAMETER.findall(statement)
    cursor = database.cursor()
    _check_ran(database, cursor)
    try:
        statement = _PARAMETER.sub(mark, statement)
        _check_ran(database, cursor.execute(statement, [values[name] for name in names]))
        return Done(cursor.rowcount, cursor.fetchall() if cursor.description is not None else ())
    finally:
        cursor.close()


def create(database: Any, statements: Sequence[str]) -> None:
    """Run the statements that create tables, with the types of this database."""
    kind = kind_of(database)
    for statement in statements:
        execute(database, statement.format(**TYPES[kind]))


def kind_of(database: Any) -> str:
    """Return `sqlite` or `postgresql`. Raises OptionError for another database."""
    if _is_sqlalchemy(database):
        bound = database.get_bind() if hasattr(database, "get_bind") else database
        name = str(bound.dialect.name)
    else:
        module = _module_of(database)
        name = next((kind for start, kind in _MODULES.items() if module.startswith(start)), module)
    if name not in TYPES:
        raise OptionError(f"a database of {name}; allowed: {', '.join(TYPES)}")
    return name


def check_connect(connect: object) -> None:
    """Raise OptionError unless `connect` is a function that returns a connection."""
    if connect is None:
        raise OptionError("connect=None; allowed: a function that makes a connection")
    check_function("connect", connect)


@contextmanager
def open_transaction(connect: Callable[[], Any]) -> Iterator[Any]:
    """Open a connection with a SQL transaction, and commit it at the end of the block.

    An exception rolls it back. `connect` returns a DB-API connection, or SQLAlchemy's Connection or Session.
    """
    database = connect()
    check_result("connect", database)
    try:
        yield database
        database.commit()
    except BaseException:
        database.rollback()
        raise
    finally:
        database.close()


def forget(database: Any, table: str, column: str, older_than: timedelta) -> int:
    """Delete the rows older than `older_than` by the time in `column`; return their number."""
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise OptionError(f"older_than={older_than!r}; allowed: a timedelta of 0 or more")
    before = now_ms() - older_than // timedelta(milliseconds=1)
    return execute(database, f"DELETE FROM {table} WHERE {column} < :before", before=before).changed


def now_ms() -> int:
    """Return the current time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def _check_ran(database: Any, result: object) -> None:
    """Raise OptionError if a database call returned an awaitable, so that nothing has run."""
    try:
        check_result("execute", result)
    except OptionError as error:
        allowed = "allowed: a blocking connection; of an AsyncSession, await session.run_sync(...)"
        raise OptionError(
            f"{type(database)!r} is a connection for asyncio: no statement ran; {allowed}"
        ) from error


def _is_sqlalchemy(database: Any) -> bool:
    """Return whether `database` is an object of SQLAlchemy, or of a class derived from one."""
    return any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(database).__mro__)


def _module_of(database: Any) -> str:
    """Return the name of the connection's DB-API module, also for a class derived from a connection."""
    for kind in type(database).__mro__:
        name = kind.__module__.partition(".")[0]
        if hasattr(sys.modules.get(name), "paramstyle"):
            return name
    return type(database).__module__


def _paramstyle_of(database: Any) -> str:
    return str(getattr(sys.modules.get(_module_of(database)), "paramstyle", ""))
