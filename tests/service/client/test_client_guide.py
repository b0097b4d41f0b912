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

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("client.md", "transactions.md")
EXAMPLES = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    )
    if ":9813" not in code
]


@pytest.mark.parametrize(("page", "number", "code"), EXAMPLES)
def test_example(
    proxy: Standin, page: str, number: int, code: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "builtins.input", lambda prompt: proxy.wait(lambda: len(proxy.done | proxy.known.keys()) > 0)
    )
    code = re.sub(r"127\.0\.0\.1:9[67]13", proxy.address, code)
    proxy.put("orders", *[b"waiting"] * 11)

    def end() -> None:
        proxy.wait(lambda: len(proxy.done) >= 11)
        os.kill(os.getpid(), signal.SIGTERM)

    if ".run()" in code:
        threading.Thread(target=end, daemon=True).start()
    exec(compile(code, f"docs/{page}, example {number}", "exec"), {})
    assert "not stored" not in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert [page for page, _, _ in EXAMPLES] == ["client.md"] * 14 + ["transactions.md"] * 5
