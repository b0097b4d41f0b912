"""The list of tests that Kafka cannot be asked has no entry that is not needed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend.kafka.options import KafkaOptions, capabilities
from tests.support.not_on_kafka import NOT_ON_KAFKA, Reason

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
ENTRIES = [(file, test, why) for file, tests in NOT_ON_KAFKA.items() for test, why in tests.items()]


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("file", NOT_ON_KAFKA)
def test_every_test_that_is_listed_is_there(file: str) -> None:
    there = functions_of(TESTS / file)
    published = ROOT / "backend/testing/engine_contract" / Path(file).name.removeprefix("test_contract_")
    if published.exists():
        there |= functions_of(published)
    assert {name.partition("[")[0] for name in NOT_ON_KAFKA[file]} <= there


@pytest.mark.parametrize(
    "why", dict.fromkeys(why for _, _, why in ENTRIES if why.capability), ids=lambda why: why.capability
)
def test_a_capability_named_as_off_is_off(why: Reason) -> None:
    assert getattr(capabilities(KafkaOptions()), why.capability) is False, "Kafka can do it now: let it run"
