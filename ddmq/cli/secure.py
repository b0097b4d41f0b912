"""`ddmq secure …`: make the files of a secured installation, and renew its certificates."""

from __future__ import annotations

import datetime
import importlib
import shlex
from pathlib import Path
from typing import Any

import click

from ddmq.cli.output import hint, print_line, print_verdict
from ddmq.cli.values import FOLDER

INSTALL = "pip install '.[secure]'"


@click.group("secure")
def secure() -> None:
    """Make certificates, rules and a login for servers that other machines reach (docs/security.md).

    \b
    Examples:
      ddmq secure init --host mq.example
      ddmq secure renew
    """


def _load_installation() -> Any:
    """Import what makes certificates. Raises click.ClickException if `cryptography` is missing."""
    try:
        return importlib.import_module("ddmq.secure.installation")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("cryptography", "cffi", "_cffi_backend"):
            raise
        raise click.ClickException(
            f"the package {error.name} is missing, which makes keys and certificates; run, in the source "
            f"tree: {INSTALL}; only this machine needs it, not the servers"
        ) from error


@secure.command("init")
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    required=True,
    help="Host name or IP address by which clients and other servers reach a server; repeatable. The profile "
    "names the first.",
)
@click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default="conf",
    show_default=True,
    help="Configuration folder of the servers; created if missing.",
)
@click.option("--profile", metavar="NAME", help="Name of the profile (default: the first --host).")
@click.option("--force", is_flag=True, help="Replace files that exist, the CA included.")
def make_files(hosts: tuple[str, ...], folder: Path, profile: str | None, force: bool) -> None:
    """Make all that a secured installation needs: a CA, certificates, rules, a login for you.

    Writes into --dir: the CA, the servers' certificate (valid for 90 days), one for administrators,
    security.yaml (TLS everywhere; everything is denied but to administrators), and ddmq.yaml if there is
    none. Writes a profile and its token into ~/.config/ddmq: `ddmq --profile NAME …` then may do everything.

    \b
    Examples:
      ddmq secure init --host mq.example --host 10.0.0.5
    """
    from ddmq_client.errors import OptionError
    from ddmq_client.security.profiles import find_profile, find_profile_folder

    installation = _load_installation()
    name = profile or hosts[0].replace(":", "-").replace("*", "_")
    try:
        profiles = find_profile_folder()
        if find_profile(name).parent != profiles:
            raise click.ClickException(f"--profile {name} is a path; allowed: a name")
    except OptionError as error:
        raise click.ClickException(str(error)) from error
    result = installation.make_installation(folder, profiles, hosts, name, _read_clock(), force=force)
    for path in result.written:
        hint(f"  {path}")
    print_verdict(True, f"certificates, rules and the profile {name}; next:")
    quoted = shlex.quote(str(folder))
    for command in (
        f"ddmq serve --config {quoted} --data-dir data",
        f"ddmq --profile {shlex.quote(name)} topic list",
        f"ddmq auth token create billing --out billing.token --config {quoted}"
        "   # for an application that security.yaml names",
    ):
        print_line(f"  {command}")
    hint(
        f"move {folder / 'ca.key'} to a safe place: whoever has it can make certificates of administrators; "
        "`ddmq secure renew` needs it within 90 days"
    )


@secure.command("renew")
@click.option(
    "--host", "hosts", metavar="NAME", multiple=True, help="A further name of a server; repeatable."
)
@click.option(
    "--dir", "folder", type=FOLDER, default="conf", show_default=True,
    help="Folder of `ddmq secure init`, with ca.crt and ca.key.",
)  # fmt: skip
def renew(hosts: tuple[str, ...], folder: Path) -> None:
    """Renew the certificates for another 90 days. Keys and the CA stay, so no client needs a change.

    Running servers use the new certificate within 10 s; copy server.crt to the other machines of the
    installation.

    \b
    Examples:
      ddmq secure renew --dir conf
    """
    paths = _load_installation().renew_certificates(folder, hosts, _read_clock())
    print_verdict(True, f"renewed: {', '.join(map(str, paths))}")


def _read_clock() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)
