"""A configuration of the previous release starts, although it sets keys that are constants now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddmq.check_result import WARNING
from ddmq.cli.doctor import run_checks
from ddmq.server.config import FILES, KEYS, Configuration, load_folder
from ddmq.server.retired_keys import RETIRED, warn_of_retired
from ddmq_common.config import SIZE_UNITS
from ddmq_rpc import connections, server, traffic

ROWS = [(file, key, value) for file, keys in RETIRED.items() for key, value in keys.items()]
OTHER_CLASSES = {  # of the constants that no options class has
    "rpc.yaml": {
        "frames_per_wakeup": connections.FRAMES_PER_WAKEUP,
        "oneway_open_max": connections.ONEWAY_OPEN_MAX,
        "accepts_per_wakeup": server.ACCEPTS_PER_WAKEUP,
        "decode_cpu_s": traffic.DECODE_CPU_S,
    },
}


def put(folder: Path, file: str, key: str, value: Any) -> Path:
    """Write a file that sets one key on its second line."""
    *parents, last = key.split(".")
    text = "".join(f"{parent}: {{" for parent in parents) + f"\n {last}: {value}" + "}" * len(parents)
    path = folder / file
    path.write_text(text + "\n")
    return path


def constant(file: str, key: str) -> Any:
    """The value that the program has."""
    if file in OTHER_CLASSES:
        return OTHER_CLASSES[file][key]
    section = next(section for section, (name, _) in FILES.items() if name == file)
    value = getattr(Configuration(), section)
    for name in key.split("."):
        value = getattr(value, name)
    return value


def number(text: str) -> float:
    for unit, factor in SIZE_UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return float(text)


def test_there_are_forty_of_them_and_none_is_a_key() -> None:
    assert len(ROWS) == 40
    assert not {f"{file.removesuffix('.yaml')}.{key}" for file, key, _ in ROWS} & {key.name for key in KEYS}


@pytest.mark.parametrize(("file", "key", "value"), ROWS)
def test_a_file_that_sets_it_is_read_and_reported_once(
    file: str, key: str, value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, file, key, 77)
    config = load_folder(tmp_path, {})
    section = next(section for section, (name, _) in FILES.items() if name == file)
    assert getattr(config, section) == getattr(Configuration(), section), "it is ignored"
    with caplog.at_level(logging.WARNING, logger="ddmq.server"):
        warn_of_retired(config.retired)
    (record,) = caplog.records
    text = f"{path}:2: {key} is no longer a setting; its value is {value}; remove it"
    assert record.getMessage() == text


@pytest.mark.parametrize(("file", "key", "value"), ROWS)
def test_the_value_in_the_report_is_the_programs(file: str, key: str, value: str) -> None:
    assert number(value.partition(",")[0]) == constant(file, key)


def test_the_other_keys_of_the_file_are_in_force(tmp_path: Path) -> None:
    (tmp_path / "backend.yaml").write_text(yaml.dump({"kafka": {"heartbeat_ms": 300, "session_ms": 1_000}}))
    config = load_folder(tmp_path, {})
    assert (config.backend.kafka.session_ms, config.backend.kafka.heartbeat_ms) == (1_000, 333)


def test_doctor_warns(tmp_path: Path) -> None:
    path = put(tmp_path, "rpc.yaml", "oneway_open_max", 3)
    warnings = [check for check in run_checks(tmp_path / "data", tmp_path) if check.check == "configuration"]
    assert [(check.status, check.remedy) for check in warnings[1:]] == [(WARNING, "remove it")]
    assert f"{path}:2: oneway_open_max is no longer a setting" in warnings[1].summary
