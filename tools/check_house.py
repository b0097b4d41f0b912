"""Run the checks that read the product's syntax in one process, so that each file is parsed once.

python tools/check_house.py     names, installs, tidy; exit code 1 when any of them reports something
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_installs
import check_names
import tidy


def main() -> int:
    gc.disable()  # the trees stay until the end: looking through them for garbage takes as long as parsing
    return max(check_names.main(), check_installs.main(), tidy.main([]))


if __name__ == "__main__":
    sys.exit(main())
