"""Every test of the contract, and its fixtures; see backend/testing."""

# ruff: noqa: F401, F403 - what a suite imports by *

from backend.testing.engine_contract.append import *
from backend.testing.engine_contract.carried import *
from backend.testing.engine_contract.commit import *
from backend.testing.engine_contract.due import *
from backend.testing.engine_contract.find import *
from backend.testing.engine_contract.lasting import *
from backend.testing.engine_contract.lifecycle import *
from backend.testing.engine_contract.members import *
from backend.testing.engine_contract.once import *
from backend.testing.engine_contract.read import *
from backend.testing.engine_contract.read_tags import *
from backend.testing.engine_contract.settings import *
from backend.testing.engine_contract.sharing import *
from backend.testing.engine_contract.topics import *
from backend.testing.engine_contract.wait import *
from backend.testing.fixtures import kit, lasting
