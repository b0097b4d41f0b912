"""The wire contract: both services, loaded from the .thrift files beside this module.

`producer` and `consumer` are thriftpy2 modules: their structs, constants and services are attributes.
They are registered under importable names, so that instances can be pickled. Result codes and reserved
names are in `codes`. Servers and the client library take the contract from here and nowhere else.
"""

from pathlib import Path
from types import ModuleType

import thriftpy2

_HERE = Path(__file__).resolve().parent


def _load(name: str) -> ModuleType:
    module: ModuleType = thriftpy2.load(
        str(_HERE / f"{name}.thrift"), module_name=f"{__name__}.{name}_thrift"
    )
    return module


producer: ModuleType = _load("producer")
consumer: ModuleType = _load("consumer")

__all__ = ["consumer", "producer"]
