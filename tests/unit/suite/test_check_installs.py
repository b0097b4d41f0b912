"""tools/check_installs.py finds what would have people install an unpublished name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_installs import breaches, breaches_of


@pytest.mark.parametrize(
    "text",
    [
        "pip install ddmq-proxy",
        "python3 -m pip install --upgrade 'ddmq-client==0.2.0'",
        "pip install 'ddmq-proxy[kafka]'",
        "pip install ddmq",
        "pipx install ddmq_proxy",
        "uv add thriftpy2 ddmq-client",
        "with the server: 'ddmq-proxy[opentelemetry]'",
        "ddmq-client>=0.2",
        "[ddmq](https://pypi.org/project/ddmq-proxy/)",
    ],
)
def test_a_use_of_a_published_name_is_reported_with_its_line(text: str) -> None:
    assert [line for line, _ in breaches(f"first\n{text}\nlast")][:1] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "pip install . && ddmq demo",
        "pip install '.[kafka]'",
        "`pip install .` is the server alone; its wheel is called `ddmq-proxy`",
        "/opt/ddmq/bin/pip install --no-cache-dir --constraint /tmp/versions.txt .",
        "pip install dist/ddmq_client-0.2.0-py3-none-any.whl",
        "pip uninstall ddmq-client",
        "rate(ddmq_sends_total[5m])",
        "`ddmq-proxy` contains the same package",
    ],
)
def test_what_needs_none_is_not(text: str) -> None:
    assert list(breaches(text)) == []


def test_a_concatenated_string_is_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "errors.py").write_text('TEXT = (\n    "run: pip install "\n    "ddmq-proxy"\n)\n')
    assert [line for line, _ in breaches_of(tmp_path / "errors.py")] == [2]
