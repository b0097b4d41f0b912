"""What identities in security.yaml change in the other files, and what doctor says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq.cli.doctor import describe_admitted_topics
from ddmq.server.config import load_folder
from ddmq_common.errors import ConfigError

IDENTITIES = "identities: {app: {allow: [send orders]}}"


def load(folder: Path, security: str, backend: str | None = None) -> tuple[str, ...]:
    (folder / "security.yaml").write_text(security)
    if backend is not None:
        (folder / "backend.yaml").write_text(backend)
    return load_folder(folder, {}).backend.kafka.topics


def test_with_identities_no_topic_of_another_program_is_admitted_by_default(tmp_path: Path) -> None:
    assert load(tmp_path, "tls: {}") == ("*",)
    assert load(tmp_path, IDENTITIES) == ()
    assert load(tmp_path, IDENTITIES, "kafka: {bootstrap: 'a:1'}") == ()


def test_topics_that_are_listed_stay_admitted(tmp_path: Path) -> None:
    assert load(tmp_path, IDENTITIES, "kafka: {topics: ['shop.*']}") == ("shop.*",)
    assert load(tmp_path, IDENTITIES, "kafka: {topics: ['*']}") == ("*",)


def test_a_variable_lists_topics_too(tmp_path: Path) -> None:
    (tmp_path / "security.yaml").write_text(IDENTITIES)
    config = load_folder(tmp_path, {"DDMQ_BACKEND__KAFKA__TOPICS": "[shop]"})
    assert config.backend.kafka.topics == ("shop",)


def test_doctor_names_the_admitted_topics() -> None:
    assert describe_admitted_topics([]).status == "ok"
    result = describe_admitted_topics([f"topic{number:02}" for number in range(30)])
    assert "topic00, topic01" in result.summary
    assert "and 20 more" in result.summary


def test_quotas_are_checked(tmp_path: Path) -> None:
    text = "identities: {app: {allow: [send orders], quotas: {requests_per_s: 100, bytes_per_s: 1MiB}}}"
    (tmp_path / "security.yaml").write_text(text)
    identities = load_folder(tmp_path, {}).security.identities
    assert identities is not None
    assert (identities["app"].quotas.requests_per_s, identities["app"].quotas.bytes_per_s) == (100, 1 << 20)
    with pytest.raises(ConfigError, match="requests_per_s"):
        load(tmp_path, "identities: {app: {quotas: {requests_per_s: -1}}}")
    with pytest.raises(ConfigError, match="request_per_s"):
        load(tmp_path, "identities: {app: {quotas: {request_per_s: 1}}}")
