"""`ddmq completion SHELL`: what to put into a shell's start-up file."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: eval "$(ddmq completion bash)"."""
    from ddmq.cli.root import root

    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(made(root, {}, "ddmq", "_DDMQ_COMPLETE").source())
