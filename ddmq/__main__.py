"""The `ddmq` command."""

import sys


def main() -> None:
    """Parse the command line and run what it says."""
    from ddmq.cli.root import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
