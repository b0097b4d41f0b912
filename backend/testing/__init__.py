"""The contract of the port as tests, for an engine of one's own: each test of `engine_contract` must pass.

    import pytest
    from backend.testing import Engine
    from backend.testing.engine_contract import *          # the tests, and the fixtures that they use

    class MyEngine(Engine):
        persists = True

        def open(self) -> None:
            self.backend = open_my_engine(self.directory, self.clock)

    @pytest.fixture
    def backend_engine(tmp_path):
        engine = MyEngine(tmp_path)
        yield engine
        engine.close()

They need pytest. The tests of ddmq's own engines are these; the naive model that random stories compare an
engine with, and what kills processes, stay with ddmq's tests.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("backend.testing.kit", "backend.testing.engine_contract")

from backend.testing.kit import Engine, Kit, KitClock, Member  # noqa: E402 - after the line above

__all__ = ["Engine", "Kit", "KitClock", "Member"]
