"""docs/admin-api.md lists the requests that the admin API's table has, with the parameters of each."""

from __future__ import annotations

import re
from pathlib import Path

from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.admin.routes import ROUTES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "admin-api.md"
ROW = re.compile(r"\| `(GET|POST|DELETE) (/[^`?]*)[^`]*` \| (.+) \|\n")


def listed() -> dict[tuple[str, str], str]:
    """Method and path, with {} for a name → the row of the page."""
    rows = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return {(row[1], re.sub(r"\b[A-Z]+\b", "{}", row[2])): row[0] for row in rows}


def test_the_page_lists_every_request_and_no_other() -> None:
    table = [(route.method, re.sub(r"\{\w+\}", "{}", route.path)) for route in ROUTES]
    assert list(listed()) == table, "in the same order"


def test_the_page_names_the_parameters_of_each() -> None:
    rows = listed()
    missing = []
    for route in ROUTES:
        row = rows[route.method, re.sub(r"\{\w+\}", "{}", route.path)]
        names = route.query.__struct_encode_fields__ if route.query else ()
        common = FormQuery.__struct_encode_fields__
        missing += [(route.path, name) for name in names if name not in common and f"{name}=" not in row]
    assert missing == []
