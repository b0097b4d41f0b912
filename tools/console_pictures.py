"""Take pictures of every page of the console: 375, 1280 and 3840 px wide, light and dark.

    python tools/console_pictures.py FOLDER

Needs playwright and Debian's chromium. Starts a server of its own with failing keys, dead letters and delays.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.sync_api import sync_playwright

from tests.console.conftest import CHROMIUM, OPTIONS
from tests.console.pages import Console
from tests.console.populated import HOSTILE_TOPIC, populate
from tests.scenarios.real_server import running

WIDTHS = (375, 1280, 3840)
SCHEMES = ("light", "dark")
PAGES = (
    "", "topics", "topics/orders", f"topics/{HOSTILE_TOPIC}", "groups", "groups/billing",
    "keys?group=billing", "dead-letters", "dead-letters/mailer", "delays?topic=mail", "retries",
    "transactions", "system", "changes", "search?text=bill", "access",
)  # fmt: skip
SETTLE_MS = 1_500  # for charts, which have no element that says that they are drawn


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pictures are written")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS, help="window widths in pixels")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        running(Path(data)) as server,
        populate(server),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        for scheme in SCHEMES:
            for width in arguments.widths:
                with Console.open(browser, server.ports["admin"], width=width, scheme=scheme) as console:
                    for path in PAGES:
                        name = path.partition("?")[0].replace("/", "-") or "now"
                        page = console.goto(path)
                        page.wait_for_timeout(SETTLE_MS)
                        picture = arguments.folder / f"{name}-{width}-{scheme}.png"
                        page.screenshot(path=str(picture), full_page=True)
                        print(picture)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
