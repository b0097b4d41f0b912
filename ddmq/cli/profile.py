"""`ddmq --profile NAME …`: a profile, as the variables of the environment that the commands read."""

from __future__ import annotations

import os
from collections.abc import Callable

import click

from ddmq_client.errors import OptionError
from ddmq_client.security.profiles import read_profile

VARIABLES = {
    "DDMQ_ADMIN": "admin",
    "DDMQ_PRODUCER": "producer",
    "DDMQ_CONSUMER": "consumer",
    "DDMQ_CA": "ca",
    "DDMQ_CERT": "certificate",
    "DDMQ_KEY": "key",
    "DDMQ_TOKEN_FILE": "token_file",
}
REPLACED = (*VARIABLES, "DDMQ_TOKEN", "DDMQ_PROFILE")


def use_profile(name: str) -> Callable[[], None]:
    """Replace the variables of this process by a profile; return a function that restores them. Commands ask
    the first of several addresses. Raises click.ClickException."""
    try:
        profile = read_profile(name)
    except OptionError as error:
        raise click.ClickException(str(error)) from error
    before = {variable: os.environ.pop(variable, None) for variable in REPLACED}
    for variable, key in VARIABLES.items():
        value: str = getattr(profile, key)
        if key in ("admin", "producer", "consumer"):
            value = value.partition(",")[0].strip()
        if value:
            os.environ[variable] = value

    def restore() -> None:
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value

    return restore
