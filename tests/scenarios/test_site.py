"""The documentation site, built as `make site` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
SPHINX = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs/site"]
LOADED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"([^\"]*)\"|<link\b[^>]*\bhref=\"([^\"]*)\"")


def build_site(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SPHINX, ".", str(target)], cwd=source, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    result = build_site(REPOSITORY, target)
    assert (result.returncode, result.stderr) == (0, "")
    return target


@pytest.mark.long
def test_every_page_is_in_the_menu_and_in_the_search(site: Path) -> None:
    menu = (site / "index.html").read_text()
    search = (site / "searchindex.js").read_text()
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert f'href="docs/{page.stem}.html"' in menu, page
        assert f'"docs/{page.stem}"' in search, page


@pytest.mark.long
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = {script or link for script, link in LOADED.findall(page.read_text())}
        assert [address for address in loaded if re.match(r"\w+:|//", address)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text()) == [], style


def test_a_link_without_a_target_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "site").symlink_to(REPOSITORY / "docs" / "site")
    (tmp_path / "README.md").write_text("# Read me\n\nSee [the page](docs/absent.md#heading).\n")
    result = build_site(tmp_path, tmp_path / "out")
    assert result.returncode != 0
    assert "docs/absent.md" in result.stderr
