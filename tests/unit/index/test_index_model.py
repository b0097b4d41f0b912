"""Any order of commits, flushes, rolls, seals, drops and crashes, against a plain list."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend.file_log.index.entries import IndexDamage
from backend.file_log.index.log_index import LogIndex
from tests.examples import examples
from tests.unit.index.files_for_index import OsStorage
from tests.unit.index.logs import PretendLog, fill_gaps, run, stored_between

ROW = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from([b"", b"k", b"\0", b"long key"]),
    st.binary(min_size=16, max_size=16),
)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = PretendLog()
        self.now_ms = 1_000
        self.damages: list[IndexDamage] = []
        self.open()

    def open(self) -> None:
        self.index = LogIndex(OsStorage(), str(self.folder / "index"), self.damages.append)
        fill_gaps(self.index, self.log, self.index.recover_files(self.log.segment_ranges()))

    def teardown(self) -> None:
        self.index.close()
        shutil.rmtree(self.folder)

    @rule(rows=st.lists(ROW, max_size=6), step_ms=st.integers(0, 3), times=st.sampled_from([1, 1, 200]))
    def commit(self, rows: list[tuple[str, bytes, bytes]], step_ms: int, times: int) -> None:
        self.now_ms += step_ms
        self.log.commit(self.index, rows * times, self.now_ms)

    @rule()
    def flush(self) -> None:
        self.index.flush()

    @rule()
    def write(self) -> None:
        self.index.write_blocks()

    @precondition(lambda self: self.log.end > self.log.starts[-1])
    @rule()
    def roll(self) -> None:
        self.log.roll(self.index)

    @precondition(lambda self: self.index.list_unsealed())
    @rule()
    def seal(self) -> None:
        start = self.index.list_unsealed()[0]
        run(self.index.seal_steps((start, dict(self.log.segment_ranges())[start])))

    @precondition(lambda self: len(self.log.starts) > 1)
    @rule()
    def drop_oldest(self) -> None:
        self.index.drop_segment(self.log.starts.pop(0))
        self.log.rows = [row for row in self.log.rows if row.position >= self.log.starts[0]]

    @rule(lost_bytes=st.integers(0, 3_000))
    def crash(self, lost_bytes: int) -> None:
        """Waiting blocks are gone, and the live file loses its last bytes."""
        self.index.writer._unwritten.clear()
        path = self.folder / "index" / f"{self.log.starts[-1]:020d}.entries"
        if path.exists():
            path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - lost_bytes)])
        self.open()

    @invariant()
    def same_answers(self) -> None:
        for topic in ("a", "b"):
            for key in (b"k", b"\0"):
                assert list(self.index.find_key(topic, key, 1 << 20)) == self.log.by_key(topic, key)
        for row in self.log.rows[-3:]:
            assert list(self.index.find_id(row.message_id, 1 << 20)) == self.log.by_id(row.message_id)
        low, high = self.now_ms - 5, self.now_ms
        assert stored_between(self.folder / "index", self.index, low, high) == self.log.between(low, high)

    @invariant()
    def nothing_damaged(self) -> None:
        assert self.damages == []
        assert self.index.writer.covered_to == self.log.end


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=examples(60), stateful_step_count=25, derandomize=True)
