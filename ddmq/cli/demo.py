"""`ddmq demo`: the main job, end to end."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Keep the data there (default: a fresh folder, gone afterwards).",
)
@click.option(
    "--report",
    "report_file",
    default="ddmq-demo-report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the report of the run is written.",
)
def demo(data_dir: Path | None, report_file: Path) -> None:
    """Two acts with the files of the standard library, every number counted; under a minute.

    One: send them, kill -9 the server in the middle, consume, prove that nothing acknowledged is lost. Two:
    consume each module in order while one fails on purpose, look at what blocks it and at its dead letters,
    send those again. What is shown behind $ can be typed as it stands. In the end: the report of the run,
    whose numbers must be those that were counted.
    """
    if data_dir is not None:
        _tell(data_dir, report_file)
        return
    with tempfile.TemporaryDirectory(prefix="ddmq-demo-") as folder:
        _tell(Path(folder) / "data", report_file)


def _tell(data_dir: Path, report_file: Path) -> None:
    from ddmq.demo.reported import report_of_the_run
    from ddmq.demo.server import DemoServer
    from ddmq.demo.story import Story

    data_dir.parent.mkdir(parents=True, exist_ok=True)
    server = DemoServer(data_dir)
    story = Story(server)
    try:
        proven = story.run()
    finally:
        server.stop()
    proven = report_of_the_run(data_dir, report_file, story.counted, story.killed_ms) and proven
    if not proven:
        raise click.exceptions.Exit(1)
