"""Every example of docs/client.md runs as it stands there."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from standin import Standin

GUIDE = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(proxy: Standin, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.sub(r"127\.0\.0\.1:9[67]13", proxy.address, EXAMPLES[number])
    proxy.put("orders", *[b"waiting"] * 11)

    def end() -> None:
        proxy.wait(lambda: len(proxy.done) >= 11)
        os.kill(os.getpid(), signal.SIGTERM)

    if ".run()" in code:
        threading.Thread(target=end, daemon=True).start()
    exec(compile(code, f"docs/client.md, example {number}", "exec"), {})
    assert "not stored" not in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 11
