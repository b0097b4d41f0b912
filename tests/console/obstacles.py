"""What hinders users on a page, as axe finds it, at every width and in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

WIDTHS = (375, 1280)
SCHEMES = ("light", "dark")
FIT_MS = 10_000
_FITS = "width => document.documentElement.scrollWidth <= width"
_SETTLE = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_RUN = """() => axe.run(document, {resultTypes: ["violations"]}).then(results => results.violations.map(
    each => [each.id, each.nodes.map(node => node.html.slice(0, 200))]))"""


def find_obstacles(page: Any, widths: Sequence[int] = WIDTHS) -> list[tuple[str, int, Any]]:
    """Return (scheme, width, violations or the page's excess width) for each appearance with a problem.

    The page is loaded once and restyled, because loading it takes longer than examining it. Its context must
    bypass the Content-Security-Policy, so that axe can run in it.
    """
    return list(_find(page, widths))


def _find(page: Any, widths: Sequence[int]) -> Iterator[tuple[str, int, Any]]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    page.evaluate(axe.Axe().axe_script)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.evaluate(_SETTLE)
            try:  # charts take their new size a moment later
                page.wait_for_function(_FITS, arg=width, timeout=FIT_MS)
            except api.TimeoutError:
                excess = page.evaluate("document.documentElement.scrollWidth") - width
                yield scheme, width, f"{excess} px wider than the window"
            violations = page.evaluate(_RUN)
            if violations:
                yield scheme, width, violations
