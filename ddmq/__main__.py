"""`python -m ddmq` is the `ddmq` command."""

from ddmq_command import main

if __name__ == "__main__":
    main()
