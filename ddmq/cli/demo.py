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
def demo(data_dir: Path | None) -> None:
    """Two acts with the files of the standard library, every number counted; about 20 seconds.

    One: send them, kill -9 the server in the middle, consume, prove that nothing acknowledged is lost. Two:
    consume each module in order while one fails on purpose, look at what blocks it and at its dead letters,
    send those again. What is shown behind $ can be typed as it stands.
    """
    if data_dir is not None:
        _tell(data_dir)
        return
    with tempfile.TemporaryDirectory(prefix="ddmq-demo-") as folder:
        _tell(Path(folder) / "data")


def _tell(data_dir: Path) -> None:
    from ddmq.demo.server import DemoServer
    from ddmq.demo.story import Story

    data_dir.parent.mkdir(parents=True, exist_ok=True)
    server = DemoServer(data_dir)
    try:
        proven = Story(server).run()
    finally:
        server.stop()
    if not proven:
        raise click.exceptions.Exit(1)
