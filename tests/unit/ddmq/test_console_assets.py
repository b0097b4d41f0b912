"""The console's files: what is served, under which headers, and that a browser finds what it asks for."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddmq.console.assets import STATIC, find_asset, is_page, load_assets

ROOT = Path(__file__).parents[3]
MODULES = sorted(path for path in STATIC.rglob("*.js") if path.parent.name != "vendor")
SIZE_MAX = 250 << 10
LINES_MAX = 200


def test_every_path_that_is_no_file_is_the_same_page():
    pages = {
        find_asset(["console", *rest])
        for rest in ([], [""], ["keys"], ["groups", "a/b"], ["no", "such", "page"])
    }
    assert len(pages) == 1
    page = pages.pop()
    assert page is not None
    assert page.content_type.startswith("text/html")
    assert b"{assets}" not in page.plain


def test_the_page_names_only_files_that_exist():
    page = load_assets()["index.html"].plain.decode()
    addresses = re.findall(r'(?:src|href)="/console/([^"]+)"', page)
    assert len(addresses) > 10
    assert [each for each in addresses if each not in load_assets()] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_imports_only_files_that_exist(module):
    imports = re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', module.read_text(encoding="utf-8"))
    assert [each for each in imports if not (module.parent / each).is_file()] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_imports_only_names_that_are_exported(module):
    for names, source in re.findall(r'import \{([^}]*)\} from "([^"]+)"', module.read_text(encoding="utf-8")):
        if "vendor" in source:
            continue
        exported = (module.parent / source).read_text(encoding="utf-8")
        for name in names.split(","):
            pattern = rf"^export (async )?(function|const|let|class) {name.split(' as ')[0].strip()}\b"
            assert re.search(pattern, exported, re.MULTILINE), (source, name)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_a_module_builds_no_html_from_text_and_is_short(module):
    text = module.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|dangerously", text
    )
    assert len(text.splitlines()) <= LINES_MAX


def test_files_are_kept_for_ever_because_their_path_has_their_version():
    script = next(asset for path, asset in load_assets().items() if path.endswith("/app.js"))
    assert ("Cache-Control", "public, max-age=31536000, immutable") in script.headers
    assert gzip.decompress(script.compressed) == script.plain


def test_a_file_of_another_version_does_not_exist():
    assert find_asset(["console", "assets", "0" * 12, "app.js"]) is None


def test_the_policy_allows_scripts_of_this_server_only():
    policy = dict(load_assets()["index.html"].headers)["Content-Security-Policy"]
    for directive in (
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "trusted-types 'none'",
    ):
        assert directive in policy
    assert "unsafe" not in policy


def test_only_pages_may_be_opened_by_links_of_other_sites():
    assert all(map(is_page, ("/", "/console", "/console/keys")))
    assert not any(map(is_page, ("/console/assets/0123/app.js", "/topics", "/consoles", "/events")))


def test_all_files_together_are_small():
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= SIZE_MAX


@pytest.mark.slow
def test_vendored_files_are_those_that_the_script_took():
    command = [sys.executable, str(ROOT / "tools/vendor.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
