"""Each kind of database and of connection to it: SQLite and PostgreSQL, DB-API and SQLAlchemy."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tests.support.postgres import postgres

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from tests.service.client.standin import Standin, standing_in

Connect = Callable[[], Any]
LITE = ("sqlite", "sqlite-connection", "sqlite-session")
POSTGRES = ("postgres", "postgres-connection", "postgres-session")
KINDS = [*LITE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in POSTGRES)]


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    with postgres() as started:
        yield started


@pytest.fixture
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """What makes a connection of the kind that the test is parametrized with, to an empty database."""
    kind = request.param
    if kind in POSTGRES:
        server = request.getfixturevalue("dsn")
        with psycopg.connect(server, autocommit=True) as clean:
            clean.execute("DROP SCHEMA public CASCADE")
            clean.execute("CREATE SCHEMA public")
    if kind == "sqlite":
        yield lambda: sqlite3.connect(tmp_path / "db", timeout=30)
        return
    if kind == "postgres":
        yield lambda: psycopg.connect(server)
        return
    if kind in LITE:
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'db'}", connect_args={"timeout": 30})
    else:
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(server))
    yield engine.connect if kind.endswith("connection") else lambda: Session(engine)
    engine.dispose()


@pytest.fixture
def proxy() -> Iterator[Standin]:
    with standing_in() as standin:
        standin.recognises = True
        yield standin


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "connect" in metafunc.fixturenames:
        metafunc.parametrize("connect", KINDS, indirect=True)
