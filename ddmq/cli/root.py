"""`ddmq …`: the command tree. Commands are imported when they are used, so that help is instant.

Exit codes: 0 done, also when the reader of a pipe has enough; 1 it could not be done (the reason in one
line on standard error); 2 the command line is wrong; 130 interrupted.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import click
from click.shell_completion import get_completion_class

from ddmq_common import compiled
from ddmq_common.errors import DdmqError

COMMANDS = {
    "serve": ("ddmq.cli.serve", "serve", "Run a whole server: proxies, delay service, log."),
    "producer": ("ddmq.cli.serve", "producer", "Run the producer proxy alone."),
    "consumer": ("ddmq.cli.serve", "consumer", "Run the consumer proxy alone."),
    "delay-service": ("ddmq.cli.serve", "delay_service", "Run the delay service alone."),
    "topic": ("ddmq.cli.operate.topic", "topic", "List, create, change, delete topics."),
    "group": (
        "ddmq.cli.operate.groups.group",
        "group",
        "Consumer groups: list, create, change; blocked keys.",
    ),
    "keys": ("ddmq.cli.operate.groups.keys", "list_keys", "Blocked and parked keys of all groups, by error."),
    "offset": ("ddmq.cli.operate.offset", "offset", "Show and reset the offsets of consumer groups."),
    "send": ("ddmq.cli.messages.send", "send", "Send messages: arguments, files, standard input."),
    "pull": ("ddmq.cli.messages.pull", "pull", "Take messages as a consumer group and acknowledge them."),
    "tail": ("ddmq.cli.messages.message", "tail", "Watch a topic without taking anything."),
    "stats": (
        "ddmq.cli.operate.stats",
        "stats",
        "Topics, groups and latencies; with --watch live, with rates.",
    ),
    "lag": (
        "ddmq.cli.operate.stats",
        "lag",
        "How far behind each group is, and how many clients it has.",
    ),
    "processes": (
        "ddmq.cli.operate.processes",
        "list_processes",
        "List the processes of a server, and what each owns.",
    ),
    "log": ("ddmq.cli.operate.log", "log", "Disk and segments of the log: show, clean."),
    "clients": ("ddmq.cli.operate.processes", "list_clients", "List who is connected."),
    "findings": (
        "ddmq.cli.operate.findings",
        "list_findings",
        "What is wrong now, and what to do first.",
    ),
    "console": (
        "ddmq.cli.operate.console",
        "serve_console",
        "Serve the web console of several servers on this machine.",
    ),
    "report": (
        "ddmq.cli.report",
        "report",
        "How messages flowed over time: an HTML page with charts.",
    ),
    "message": ("ddmq.cli.messages.message", "message", "Find messages by id, key, offset or time."),
    "delay": ("ddmq.cli.messages.delay", "delay", "Delayed messages: add, list, cancel, move, back up."),
    "dlq": ("ddmq.cli.operate.dead_letters.dlq", "dlq", "Dead letters: list, show, export, resend, purge."),
    "op": ("ddmq.cli.operate.op", "op", "Change all that matches: dead letters, keys, delays."),
    "changes": ("ddmq.cli.operate.changes", "list_changes", "The last changes by operators, newest first."),
    "undo": (
        "ddmq.cli.operate.changes",
        "undo_change",
        "Undo a change of settings, offsets or a parked key.",
    ),
    "tx": ("ddmq.cli.operate.tx", "tx", "Transactions: list, show, commit, roll back."),
    "auth": ("ddmq.cli.operate.auth", "auth", "Identities, rights and tokens: explain, make, revoke."),
    "move": ("ddmq.cli.move", "move", "Copy all data to another engine: file log or Kafka."),
    "secure": ("ddmq.cli.secure", "secure", "Make or renew certificates, rules and a login."),
    "config": (
        "ddmq.cli.config",
        "config_command",
        "Show the settings of a server, and where each comes from.",
    ),
    "doctor": ("ddmq.cli.doctor", "doctor", "Check machine, directory, ports and configuration."),
    "bench": ("ddmq.cli.bench", "bench", "Run a benchmark."),
    "kafka": ("ddmq.cli.kafka", "kafka", "Kafka brokers on this machine for a trial: up, down, status."),
    "demo": ("ddmq.demo.story", "demo", "Kill a server; show that no message is lost and order kept."),
    "completion": ("ddmq.cli.root", "completion", "Print the shell completion script."),
}

SUGGESTIONS_MAX = 3
RESUMES, STOPS, DELETES = ("resume", "release"), ("pause", "hold"), ("delete", "cancel", "purge", "revoke")
SYNONYMS = {  # words of other tools, and what the commands here are called
    **dict.fromkeys(("unpause", "continue", "start", "unfreeze"), (*RESUMES, "serve")),
    "unhold": ("release",),
    **dict.fromkeys(("unpark", "unblock"), ("replay", "skip")),
    **dict.fromkeys(("stop", "suspend", "freeze"), STOPS),
    **dict.fromkeys(("remove", "rm", "drop", "del"), DELETES),
    **dict.fromkeys(("clear", "empty"), ("purge",)),
    "ls": ("list",),
    **dict.fromkeys(("describe", "info", "get"), ("show",)),
    "status": ("show", "stats", "findings"),
    **dict.fromkeys(("add", "new", "make"), ("create",)),
    "create": ("add", "plan"),
    **dict.fromkeys(("update", "alter", "edit", "change"), ("set", "reschedule")),
    **dict.fromkeys(("retry", "redrive", "requeue"), ("resend", "replay")),
    **dict.fromkeys(("publish", "produce", "put"), ("send",)),
    **dict.fromkeys(("consume", "receive", "read", "subscribe"), ("pull", "tail")),
    "peek": ("tail", "message"),
    "run": ("serve",),
}  # fmt: skip
SECTIONS = {  # of the help; a command that is in none of them stands at the end
    "Use messages": ("send", "pull", "tail", "message", "delay"),
    "Run servers": (
        "serve", "producer", "consumer", "delay-service", "secure", "config", "doctor", "completion",
    ),
    "Operate": (
        "findings", "lag", "stats", "topic", "group", "keys", "offset", "dlq", "op",
        "changes", "undo", "tx", "auth", "processes", "clients", "log", "console", "report",
        "move",
    ),
    "Try": ("demo", "kafka", "bench"),
}  # fmt: skip


class Tree(click.Group):
    """Looks commands up in COMMANDS and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from ddmq.cli.output import close_stdout

            close_stdout()
            raise click.exceptions.Exit(0) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        placed = {name for names in SECTIONS.values() for name in names}
        sections = SECTIONS | {"Others": tuple(name for name in COMMANDS if name not in placed)}
        width = max(map(len, COMMANDS))
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(width), COMMANDS[name][2]) for name in names])


EPILOG = """
\b
If you know other tools:
  kafka-topics.sh --list                    ddmq topic list
  kafka-console-producer.sh                 ddmq send TOPIC --lines -
  kafka-console-consumer.sh                 ddmq tail TOPIC
  kafka-consumer-groups.sh --describe       ddmq lag; ddmq group show GROUP
  kafka-consumer-groups.sh --reset-offsets  ddmq offset reset GROUP
  rabbitmqctl list_queues                   ddmq lag
  rabbitmqctl list_consumers                ddmq group show GROUP
  redis-cli XADD, XREADGROUP                ddmq send, ddmq pull
  redis-cli XPENDING                        ddmq group show GROUP
"""


@click.group(cls=Tree, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(
    package_name="ddmq-proxy", prog_name="ddmq", message=f"%(prog)s, version %(version)s ({compiled.STATE})"
)
@click.option(
    "--profile",
    metavar="NAME",
    envvar="DDMQ_PROFILE",
    help="Profile of ~/.config/ddmq: addresses, TLS and login of one installation (or set DDMQ_PROFILE).",
)
@click.pass_context
def root(ctx: click.Context, profile: str | None) -> None:
    """A message-queue proxy layer: Thrift in, Thrift out, a durable log in between.

    \b
    Start a server, send a message, take it as a consumer group:
      ddmq serve --data-dir ./data
      ddmq send orders hello
      ddmq pull orders --group billing

    `ddmq COMMAND --help` has examples. Most commands ask the server at 127.0.0.1; DDMQ_ADMIN, DDMQ_PRODUCER
    and DDMQ_CONSUMER (each HOST:PORT), or a profile, name another.
    """
    if profile:
        from ddmq.cli.profile import use_profile

        ctx.call_on_close(use_profile(profile))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no such character gets its number
            stream.reconfigure(errors="backslashreplace")
    try:
        result = root.main(args=list(arguments), prog_name="ddmq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        _print_error(_one_line(error))
        return error.exit_code
    except click.ClickException as error:
        _print_error(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except DdmqError as error:
        _print_error(str(error))
        return 1
    return result if isinstance(result, int) else 0


def _print_error(text: str) -> None:
    from ddmq.cli.output import hint

    hint(f"Error: {text}")


def _one_line(error: click.UsageError) -> str:
    """Return one line that states the error in the command line, and the command that shows its help."""
    message = error.format_message()
    if isinstance(error, click.exceptions.NoSuchCommand):
        suggestions = " or ".join(f"`{each}`" for each in suggest_commands(error))
        message = f"No such command {error.command_name!r}" + (
            f". Did you mean {suggestions}?" if suggestions else ""
        )
    text = " ".join(message.split()).removesuffix(".")
    return text if error.ctx is None else f"{text}; see `{error.ctx.command_path} --help`"


def suggest_commands(error: click.exceptions.NoSuchCommand) -> list[str]:
    """Return the command lines that the user may have meant, such as `ddmq group resume`.

    They are the first of these that exist: synonyms in the same group, commands of that name in other groups
    or without a group, names of the same group that are almost the same, and synonyms in other groups.
    """
    context = error.ctx
    if context is None or not isinstance(context.command, click.Group):
        return []
    word, group, path = error.command_name, context.command, context.command_path
    names = [name for name, _ in _visible_commands(group, context)]
    synonyms = [name for name in SYNONYMS.get(word, ()) if name in names]
    if synonyms:
        return [f"{path} {name}" for name in synonyms][:SUGGESTIONS_MAX]
    others = [each for each in _all_commands(context.find_root()) if each.rpartition(" ")[0] != path]
    suggestions = (
        [each for each in others if each.rpartition(" ")[2] == word]
        or [f"{path} {name}" for name in get_close_matches(word, names)]
        or [each for name in SYNONYMS.get(word, ()) for each in others if each.endswith(f" {name}")]
    )
    return suggestions[:SUGGESTIONS_MAX]


def _visible_commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        try:
            command = group.get_command(context, name)
        except ImportError:  # a package is missing that only this command needs
            continue
        if command is not None and not command.hidden:
            yield name, command


def _all_commands(root: click.Context) -> Iterator[str]:
    """Yield the command lines of all commands and of those of their groups: `ddmq lag`, `ddmq auth usage`."""
    assert isinstance(root.command, click.Group)
    for name, command in _visible_commands(root.command, root):
        path = f"{root.command_path} {name}"
        yield path
        if isinstance(command, click.Group):
            yield from (f"{path} {below}" for below, _ in _visible_commands(command, root))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes ddmq's commands, options, topics and groups in a shell.

    \b
    Load it at each start of the shell:
      echo 'eval "$(ddmq completion bash)"' >> ~/.bashrc
      echo 'eval "$(ddmq completion zsh)"' >> ~/.zshrc
      ddmq completion fish > ~/.config/fish/completions/ddmq.fish
    """
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.ClickException(f"no completion for {shell}")
    from ddmq.cli.output import print_line

    for line in shell_class(root, {}, "ddmq", "_DDMQ_COMPLETE").source().splitlines():
        print_line(line)
