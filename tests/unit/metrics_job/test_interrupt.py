"""Ctrl-C while Spark works: a KeyboardInterrupt and nothing else; no Spark."""

from __future__ import annotations

import logging
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from metrics_job.session import quiet_interrupt
from metrics_job.stream import stop_on_signals


def interrupted_call() -> None:
    """As py4j makes them."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")
        raise


def test_jobs_are_cancelled_without_any_output(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []
    context = SimpleNamespace(setLogLevel=done.append, cancelAllJobs=lambda: done.append("cancelled"))
    spark: Any = SimpleNamespace(sparkContext=context)
    before = signal.getsignal(signal.SIGINT)
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt), quiet_interrupt(spark):
            interrupted_call()
    finally:
        logging.getLogger().removeHandler(handler)
    assert done == ["OFF", "cancelled"]
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) == before


def test_a_stream_stops_after_its_batch(capsys: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            stopping = threading.Event()
            stop_on_signals(stopping)
            signal.raise_signal(number)
            assert stopping.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == "stopping after this batch\n" * 2
