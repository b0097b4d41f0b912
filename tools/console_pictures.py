"""Take pictures of every page of the console: 375, 1280 and 3840 px wide, light and dark.

    python tools/console_pictures.py FOLDER [--widths 375 1280] [--pages keys access]

Needs playwright and Debian's chromium. Starts a server of its own with failing keys, dead letters and delays,
and one that checks rights, for the login and for the pages Access and Changes with the audit log.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.sync_api import sync_playwright

from tests.console.conftest import CHROMIUM, OPTIONS
from tests.console.pages import PAGES, Console
from tests.console.populated import fill_in, populate
from tests.scenarios.real_server import RealServer, running
from tests.support.rights import AdminClient, Who, write_rights

WIDTHS = (375, 1280, 3840)
SCHEMES = ("light", "dark")
HEIGHT_MAX = 6_000  # of a picture
SETTLE_MS = 500  # for charts, which have no element that says that they are drawn
DIALOGS = {"keys-park": ("keys?group=billing", "Park…"), "topics-orders-send": ("topics/orders", "Send…")}
SECURED = {
    "secured-access": "access?identity=billing&right=send&name=orders",
    "secured-changes": "changes",
    "secured-topics": "topics",
}


class Scene(NamedTuple):
    """A page to take a picture of: where it is, with which token, and the button that opens its dialog."""

    port: int
    path: str
    token: str = ""
    button: str = ""


@contextmanager
def deploy(folder: Path) -> Iterator[dict[str, Scene]]:
    """Start the servers; return all pages by the names of their pictures."""
    with running(folder / "open") as server, populate(server), secure(folder / "secured") as (secured, token):
        port = server.ports["admin"]
        scenes = {name_page(path): Scene(port, fill_in(server, path)) for path in PAGES}
        scenes |= {name: Scene(port, path, button=button) for name, (path, button) in DIALOGS.items()}
        scenes |= {name: Scene(secured.ports["admin"], path, token) for name, path in SECURED.items()}
        scenes["secured-login"] = Scene(secured.ports["admin"], "topics")
        scenes["secured-rejected"] = Scene(secured.ports["admin"], "topics", "nonsense")
        yield scenes


@contextmanager
def secure(folder: Path) -> Iterator[tuple[RealServer, str]]:
    """Start a server that checks rights, with a rejection in its audit log; return it and a token for it."""
    tokens = write_rights(
        folder / "conf", [Who("billing", frozenset({("consume", "orders"), ("metrics", "")}))]
    )
    with running(folder, folder / "conf") as server:
        AdminClient(server.ports["admin"], tokens["root"]).request(
            "POST", "topics", "orders", body={"queues": 1}
        )
        AdminClient(server.ports["admin"], tokens["billing"]).request("DELETE", "topics", "orders")
        yield server, tokens["root"]


def name_page(path: str) -> str:
    """Return the name of a page's pictures: "keys-group=billing"."""
    return path.replace("{", "").replace("}", "").replace("/", "-").replace("?", "-") or "now"


def take_pictures(
    browser: Any, scenes: Mapping[str, Scene], widths: list[int], save: Callable[[Any, str], None]
) -> None:
    """Open each page once in each scheme, and show it at each width."""
    for (name, scene), scheme in product(scenes.items(), SCHEMES):
        with Console.open(browser, scene.port, token=scene.token, scheme=scheme) as console:
            page = console.goto(scene.path)
            if scene.button:
                console.press(scene.button)
                page.locator("dialog[open] .command").wait_for()
            for width in widths:
                page.set_viewport_size({"width": width, "height": 900})
                page.wait_for_timeout(SETTLE_MS)
                save(page, f"{name}-{width}-{scheme}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures are written")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS, help="window widths in pixels")
    parser.add_argument("--pages", nargs="*", help="the names of the pages, such as keys; default: all")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)

    def save(page: Any, name: str) -> None:
        height = min(HEIGHT_MAX, page.evaluate("document.documentElement.scrollHeight"))
        picture = arguments.folder / f"{name}.png"
        width = page.viewport_size["width"]
        page.screenshot(
            path=str(picture), full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height}
        )
        print(picture, flush=True)

    with ExitStack() as stack:
        scenes = stack.enter_context(deploy(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        if arguments.pages:
            scenes = {name: scene for name, scene in scenes.items() if name in arguments.pages}
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        take_pictures(browser, scenes, list(arguments.widths), save)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
