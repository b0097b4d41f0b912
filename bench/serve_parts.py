"""Producer and consumer proxy in one process without a delay service, which then is a process of its own.

python -m bench.serve_parts DATA_DIR [BOOTSTRAP]
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddmq.address import ready_line
from ddmq.server.config import load_folder, with_flags
from ddmq.server.process import logs
from ddmq.server.process.server_process import ServerProcess
from ddmq.server.process.signals import install_signals


def main() -> None:
    anywhere = "127.0.0.1:0"
    flags = {"data_dir": Path(sys.argv[1]), "producer": anywhere, "consumer": anywhere, "admin": anywhere}
    on_kafka = {"engine": "kafka", "bootstrap": sys.argv[2]} if len(sys.argv) > 2 else {}
    config = with_flags(load_folder(None), **flags, **on_kafka)
    logs.set_up(config.serve.log_level, config.serve.log_format)
    process = ServerProcess(config, ("producer", "consumer", "admin"))
    process.start()
    install_signals(process)
    print(ready_line(process.addresses, config.serve.data_dir), flush=True)
    process.run_until_stopped()


if __name__ == "__main__":
    main()
