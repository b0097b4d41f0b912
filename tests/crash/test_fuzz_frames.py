"""A short run of R4; the long one is `python -m tests.crash.fuzz_frames --frames 10000000`."""

import random

import pytest

from tests.crash import fuzz_frames


def test_no_mutated_frame_is_a_finding() -> None:
    printed: list[str] = []
    assert fuzz_frames.run(seed=3, frames=20_000, print_line=printed.append) == 0, printed
    assert "20,000 frames" in printed[0]


def test_a_slice_is_repeatable() -> None:
    seeds = fuzz_frames.corpus()
    runs = [[fuzz_frames.mutated(seeds, random.Random("1/7")) for _ in range(3)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_both_protocols_and_services_are_in_the_corpus() -> None:
    kinds = {(seed.service, seed.frame[4]) for seed in fuzz_frames.corpus()}
    assert kinds == {(0, 0x82), (0, 0x80), (1, 0x82), (1, 0x80)}


def test_a_finding_names_its_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(self: fuzz_frames.Decoding, seed: fuzz_frames.Seed) -> None:
        raise fuzz_frames.Finding("too slow")

    monkeypatch.setattr(fuzz_frames.Decoding, "take", hang)
    printed: list[str] = []
    assert fuzz_frames.run(seed=3, frames=100, first_slice=41, print_line=printed.append) == 1
    assert printed[-1].startswith("replay: python -m tests.crash.fuzz_frames --seed 3 --slice 41 ")
