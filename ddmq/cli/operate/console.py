"""`ddmq console`: the web console of several servers, on a port of this machine."""

from __future__ import annotations

import http.client
import os
import secrets

import click

from ddmq.address import ADDRESS, HostPort, is_loopback, parse
from ddmq.cli.admin_client import admin_address, open_connection, read_token
from ddmq.cli.output import hint, print_line, reason

CONSOLE = HostPort("127.0.0.1", 9814)
CODE_BYTES = 16


@click.command("console")
@click.option(
    "--admin",
    "servers",
    metavar="HOST:PORT,…",
    help="Admin addresses of the servers; default: all of the profile, DDMQ_ADMIN, or 127.0.0.1:9813.",
)
@click.option(
    "--listen",
    type=ADDRESS,
    default=str(CONSOLE),
    show_default=True,
    help="Where browsers connect: loopback.",
)
@click.pass_context
def serve_console(ctx: click.Context, servers: str | None, listen: HostPort) -> None:
    """Serve the web console of one or several servers on this machine.

    \b
    Examples:
      ddmq console --admin mq-1:9813,mq-2:9813
      ddmq console --admin mq-1:9813 --listen 127.0.0.1:8000

    Prints a line that starts with `ready`, with the address to open in a browser. A switch at the top of each
    page shows how each server is and leads to it. Ctrl-C ends the command.

    Requests use the TLS and the login of this command: those of a profile (`ddmq --profile NAME console`), or
    DDMQ_CA, DDMQ_CERT and DDMQ_TOKEN_FILE. Then the browser asks once for a code that the command prints,
    because other users of the machine can reach the port, too.
    """
    from ddmq.console.gateway import SERVERS_MAX, ConsoleGateway, GatewayServer

    addresses = _read_addresses(ctx, servers)
    if not 1 <= len(addresses) <= SERVERS_MAX:
        raise click.ClickException(f"--admin has {len(addresses)} servers; allowed: 1 to {SERVERS_MAX}")
    if not is_loopback(listen.host):
        raise click.ClickException(
            f"--listen {listen}: other machines could use your login; allowed: an address of loopback, "
            f"such as {CONSOLE}; to use it from another machine, forward the port with ssh -L"
        )
    code = secrets.token_urlsafe(CODE_BYTES) if read_token() or os.environ.get("DDMQ_CERT") else ""
    gateway = ConsoleGateway([str(each) for each in addresses], _connect, read_token, code)
    try:
        server = GatewayServer(listen.host, listen.port, gateway)
    except OSError as error:
        raise click.ClickException(f"--listen {listen}: {reason(error)}; allowed: a free port") from error
    with server:
        print_line(f"ready console=http://{HostPort(listen.host, int(server.server_address[1]))}/")
        if code:
            hint(f"login code: {code}")
        server.serve_forever()


def _read_addresses(ctx: click.Context, servers: str | None) -> list[HostPort]:
    """Return the addresses of --admin, else all of the profile, else that of the environment."""
    if servers is None:
        servers = _read_profile_addresses(ctx)
    if servers is None:
        return [admin_address()]
    try:
        return [parse(text.strip()) for text in servers.split(",") if text.strip()]
    except ValueError as error:
        raise click.ClickException(f"--admin: {error}") from error


def _read_profile_addresses(ctx: click.Context) -> str | None:
    name = ctx.find_root().params.get("profile")
    if not name:
        return None
    from ddmq_client.security.profiles import read_profile

    return read_profile(name).admin or None


def _connect(server: str, timeout_s: float) -> http.client.HTTPConnection:
    return open_connection(parse(server), timeout_s)
