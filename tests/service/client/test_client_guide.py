"""Every example of docs/client.md and docs/transactions.md runs as it stands there, against a stand-in proxy.

Those that talk to an admin port run against real servers alone (tests/scenarios/test_docs_python.py).
"""

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from tests.service.client.standin import Standin
from tests.support.pages import Block, page_blocks

PAGES = ("docs/client.md", "docs/transactions.md")
EXAMPLES = [block for page in PAGES for block in page_blocks(page, "python") if ":9813" not in block.text]


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_example(
    proxy: Standin, block: Block, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "builtins.input",
        lambda prompt: proxy.wait(lambda: len(proxy.done | proxy.stored_identities.keys()) > 0),
    )
    code = re.sub(r"127\.0\.0\.1:9[67]13", proxy.address, block.text)
    proxy.put("orders", *[b"waiting"] * 11)

    def end() -> None:
        proxy.wait(lambda: len(proxy.done) >= 11)
        os.kill(os.getpid(), signal.SIGTERM)

    if ".run()" in code:
        threading.Thread(target=end, daemon=True).start()
    exec(compile(code, str(block), "exec"), {})
    assert "not stored" not in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert [block.page for block in EXAMPLES] == ["docs/client.md"] * 14 + ["docs/transactions.md"] * 5
