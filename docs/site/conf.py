"""How Sphinx builds the documentation site from README.md and docs/ (`make site`).

The pages stay plain Markdown that reads well in an editor and on a code host; only the menu is written for
the site. Every warning is an error, so a page that is missing in the menu or a link without a target ends the
build.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")

MENU = {
    "Start": "first-steps README promises from-ddmq from-rocketmq from-celery",
    "Use": """client order-keys retries delay filters transactions replies push fetching spark dramatiq
        opentelemetry testing-handlers""",
    "Operate": """running deployment security console kubernetes kafka kafka-upgrades kafka-compared
        kafka-security operating-groups configuration bounds retention metrics alerts report story metrics-job
        metrics-job-streaming admin-api performance licences""",
    "Inside": """architecture glossary states wire-additions testing formats formats-index formats-progress
        formats-delay formats-transactions formats-sessions formats-samples formats-trace formats-kafka
        decisions/README""",
    "Project": "/SECURITY /CHANGELOG",
}

project = "ddmq"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "docs/decisions/*.md"]
html_theme = "furo"
html_title = "ddmq"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 5
nitpicky = True


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the menu to the first page, and that of the decisions to their index."""
    if page == root_doc:
        for caption, names in MENU.items():
            source[0] += toctree([str(Path("/docs", name)) for name in names.split()], caption)
    elif page == "docs/decisions/README":
        records = sorted(path.stem for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
        source[0] += toctree([f"/docs/decisions/{record}" for record in records], "Decisions")


def toctree(pages: list[str], caption: str) -> str:
    """Return a hidden menu of pages as MyST writes it."""
    return f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def show_folders_as_text(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace links to folders of the source tree, for which the site has no page, by their text."""
    folder = (ROOT / page).parent
    source[0] = LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], source[0])


def name_first_page_index(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to index.html, which servers show for a folder."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Register both with Sphinx."""
    app.connect("source-read", add_menu)
    app.connect("source-read", show_folders_as_text)
    app.connect("build-finished", name_first_page_index)
