"""tools/check_pages.py finds wide lines and links without a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIDE = "x" * 121


@pytest.fixture
def breaches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """The breaches of a tree whose README is this text; docs/page.md has the headings "A title" and "b"."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_pages

    def check(readme: str) -> list[str]:
        (tmp_path / "docs").mkdir(exist_ok=True)
        (tmp_path / "docs" / "page.md").write_text("# A title\n## b\n## b\n```\n# no heading\n```\n")
        (tmp_path / "README.md").write_text(readme)
        return list(check_pages.breaches(tmp_path))

    return check


def test_a_wide_line_is_reported_with_its_number(breaches: Callable[[str], list[str]]) -> None:
    assert breaches(f"short\n{WIDE}\n") == ["README.md:2: 121 columns; allowed: 120"]
    assert breaches(f"```\n{WIDE}\n```\n") == ["README.md:2: 121 columns; allowed: 120"]
    assert breaches(f"```console\n$ {WIDE}\n```\n") == ["README.md:2: 123 columns; allowed: 120"]


def test_rows_of_tables_and_output_may_be_wide(breaches: Callable[[str], list[str]]) -> None:
    assert breaches(f"| {WIDE} |\n```console\n$ ddmq lag\n{WIDE}\n```\n") == []


@pytest.mark.parametrize(
    "link", ["docs/page.md", "docs/page.md#a-title", "docs/page.md#b-1", "https://a.example/#x"]
)
def test_a_link_with_a_target_is_fine(breaches: Callable[[str], list[str]], link: str) -> None:
    assert breaches(f"[text]({link})") == []


@pytest.mark.parametrize("link", ["docs/gone.md", "docs/page.md#c", "docs/page.md#no-heading", "#here"])
def test_a_link_without_one_is_named(breaches: Callable[[str], list[str]], link: str) -> None:
    assert breaches(f"[text]({link})") == [f"README.md: {link} has no target"]
