"""The first Python of README.md and docs/first-steps.md prints its message; links lead to every page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.pages import page_blocks
from tests.support.waits import until

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "group"), [("README.md", "shipping"), ("docs/first-steps.md", "billing")])
def test_its_python_prints_its_message_on_a_fresh_server(page: str, group: str, tmp_path: Path) -> None:
    block = page_blocks(page, "python")[0].text
    with running(tmp_path) as server:
        for component, port in (("producer", 9613), ("consumer", 9713)):
            block = block.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[component]}")
        output = tmp_path / "output"
        with output.open("w") as stdout:
            program = subprocess.Popen(
                [sys.executable, "-u", "-c", block],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            until(lambda: "order 17: two boxes\n" in output.read_text(), "its message is handled")
            until(lambda: lag(server, group) == 0, "its message is acknowledged")
            _, errors = program.communicate("\n", timeout=PATIENCE_S)
        finally:
            program.kill()
    assert (program.returncode, errors) == (0, "")


def lag(server: RealServer, group: str) -> int | None:
    """How many messages the group has not finished; None before there is one."""
    rows = [row for row in server.admin("GET", "lag") if row["group"] == group]
    return sum(row["lag"] for row in rows) if rows else None


def test_its_links_have_their_targets() -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert (REPOSITORY / link).exists(), link


def test_the_readme_links_to_every_page_of_docs() -> None:
    docs = REPOSITORY / "docs"
    pages = set(re.findall(r"\(docs/([^)#/]+\.md)", README))
    for page in ("README.md", "architecture.md", "formats.md"):
        pages |= set(re.findall(r"\(([^)#/]+\.md)", (docs / page).read_text()))
    assert {page.name for page in docs.glob("*.md")} <= pages
