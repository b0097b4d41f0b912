"""`python -m metrics_job …`, and what spark-submit starts."""

from metrics_job.cli import main

if __name__ == "__main__":
    main()
