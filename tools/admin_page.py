"""Write the table of requests in docs/admin-api.md from the routes of the admin API; `--check` only says
whether it is up to date."""

import re
import sys
from pathlib import Path

import msgspec.structs

from ddmq.server.admin.contract.queries import FormQuery
from ddmq.server.admin.contract.route import Route
from ddmq.server.admin.routes import ROUTES

COMMON = FormQuery.__struct_fields__  # of all queries
PAGE = Path(__file__).resolve().parent.parent / "docs" / "admin-api.md"
HEAD = "| request | response or effect |\n|---|---|\n"
SORTS_HEAD = "| list | `sort` (the default first) |\n|---|---|\n"


def build_page(page: str) -> str:
    """Return the page with the tables of all routes and all lists in place of its own."""
    for head, build in ((HEAD, build_table), (SORTS_HEAD, build_sorts)):
        table = re.compile(re.escape(head) + r"(?:\|.*\n)*")
        if not table.search(page):
            raise ValueError(f"{PAGE.name} has no table with the head {head.splitlines()[0]!r}")
        page = table.sub(build(), page, count=1)
    return page


def build_table() -> str:
    """Return the table: the request with the names of its query and their defaults, and its effect."""
    return HEAD + "".join(
        f"| `{route.method} {describe_target(route)}` | {route.text} |\n" for route in ROUTES
    )


def build_sorts() -> str:
    """Return the table of the orders of each list."""
    return SORTS_HEAD + "".join(
        f"| `{_shown_path(route)}` | {', '.join(f'`{order}`' for order in route.listing.sorts)} |\n"
        for route in ROUTES
        if route.listing is not None and route.listing.sorts
    )


def describe_target(route: Route) -> str:
    """Return the path of a route, with variables in upper case, and its query."""
    path = _shown_path(route)
    if route.query is None:
        return path
    fields = [each for each in msgspec.structs.fields(route.query) if each.name not in COMMON]
    if not fields:
        return path
    return f"{path}?{'&'.join(f'{field.encode_name}={_default_text(field.default)}' for field in fields)}"


def _shown_path(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda variable: variable[1].upper(), route.path)


def _default_text(default: object) -> str:
    """Return a default as text; "" where an absent name means no choice."""
    if isinstance(default, bool):
        return str(int(default))
    return "" if default is msgspec.NODEFAULT else str(default or "")


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        fresh = page == build_page(page)
        print("admin API: the page is up to date" if fresh else "admin API: run `python tools/admin_page.py`")
        return 0 if fresh else 1
    PAGE.write_text(build_page(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
