"""`ddmq bench peers`: what is installed of the others, side by side with ours; tables and a picture.

`python -m bench.peers` does the queues (queues.py), then the delays (delays.py), prints a table of each and
writes bench/results/peers.svg; with `queues` or `delays`, only these.
"""

from __future__ import annotations

from bench.harness import ARGUMENTS, QUICK, RESULTS
from bench.peers import delays, queues, summary

WORKS = {"queues": queues.main, "delays": delays.main}


def main() -> None:
    for name in ARGUMENTS or WORKS:
        WORKS[name]()
    if not QUICK:
        by_series = summary.medians()
        print(summary.tables(by_series))
        (RESULTS / summary.PICTURE).write_text(summary.picture(by_series))


if __name__ == "__main__":
    main()
