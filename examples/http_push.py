"""Receive messages by HTTP: the proxy calls this server, and no client library is needed.

Allow the target in conf/proxy_consumer.yaml (`push_targets: ["127.0.0.1:8080"]`), then:

    ddmq serve --data-dir ./data --config conf
    ddmq group set hooks --topic orders --actions FormParams,AsyncHttp --start first \
        --push '{"http": {"urls": ["http://127.0.0.1:8080/orders"]}, "form": {"append_context": ["MSG_KEY"]}}'
    python examples/http_push.py 8080
    ddmq send orders 'two boxes' --key 17

An answer with status 200 acknowledges the message. Any other answer fails it, and it comes again.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


class Orders(BaseHTTPRequestHandler):
    """Receives one message per request."""

    protocol_version = "HTTP/1.1"  # keeps the proxy's connections open
    failed: set[str] = set()

    def do_POST(self) -> None:
        """Print the message. The first delivery of each key is answered with 503, to show the retry."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        body, key = form["params"][0], form["carrera_msg_key"][0]
        if key not in self.failed:
            self.failed.add(key)
            self.send_status(503)
            return
        print(f"order {key}: {body}", flush=True)
        self.send_status(200)

    def send_status(self, status: int) -> None:
        """Send an answer without a body."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print no line for each request."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders).serve_forever()
