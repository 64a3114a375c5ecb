"""Serve a run over HTTP, a template to copy:

    python -m experiments.serve --workdir=DIR [--port=8000]

    curl -d '["Where is the station?"]' http://localhost:8000

A request is a JSON list of sentences, and the reply is the list of their translations. A sentence
does not wait for a compilation, because `Run.warm_up` compiles all programs before the first one.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jformer
from jformer.run import Run

MAX_BATCH = 16  # sentences of a request
LENGTHS = (15, 31, 63, 127)  # source tokens, the longest of each program, see `Run.warm_up`


def make_server(run: Run, port: int) -> ThreadingHTTPServer:
    """Return a server that translates with a run; port 0 takes a free one."""
    lengths = [length for length in LENGTHS if length < run.config.data.max_length]
    run.warm_up(lengths or [run.config.data.max_length - 1], batch=MAX_BATCH)
    one_at_a_time = threading.Lock()  # a search uses all cores or the whole GPU

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                sentences = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if len(sentences) > MAX_BATCH:
                    raise ValueError(f"at most {MAX_BATCH} sentences in a request")
                with one_at_a_time:
                    self.reply(200, run.translate(sentences))
            except (TypeError, ValueError, jformer.UserError) as error:
                self.reply(400, {"error": str(error)})

        def reply(self, status: int, content: list[str] | dict[str, str]) -> None:
            body = json.dumps(content, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("", port), Handler)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    server = make_server(jformer.load(options.workdir), options.port)
    print(f"serving {options.workdir} on port {options.port}")
    server.serve_forever()
