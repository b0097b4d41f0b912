"""What hinders users on a page, as axe finds it, at every width and in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

WIDTHS = (375, 1280)
SCHEMES = ("light", "dark")
FIT_MS = 10_000
_EXCESS = """([width, part]) => Math.max(document.documentElement.scrollWidth - width,
    ...[...document.querySelectorAll(part)].map(element => element.scrollWidth - element.clientWidth))"""
_FITS = f"arguments => ({_EXCESS})(arguments) <= 0"
_SETTLE = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_RUN = """part => axe.run(part, {resultTypes: ["violations"]}).then(results => results.violations.map(
    each => [each.id, each.nodes.map(node => node.html.slice(0, 200))]))"""


def find_obstacles(
    page: Any, widths: Sequence[int] = WIDTHS, part: str = "html"
) -> list[tuple[str, int, Any]]:
    """Return (scheme, width, violations or the page's excess width) for each appearance with a problem.

    The page is loaded once and restyled, because loading it takes longer than examining it. Its context must
    bypass the Content-Security-Policy, so that axe can run in it. `part`: the selector of what is examined.
    """
    return list(_find(page, widths, part))


def _find(page: Any, widths: Sequence[int], part: str) -> Iterator[tuple[str, int, Any]]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(axe.Axe().axe_script)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.evaluate(_SETTLE)
            try:  # charts take their new size a moment later
                page.wait_for_function(_FITS, arg=[width, part], timeout=FIT_MS)
            except api.TimeoutError:
                yield scheme, width, f"{page.evaluate(_EXCESS, [width, part])} px wider than the window"
            violations = page.evaluate(_RUN, part)
            if violations:
                yield scheme, width, violations
