"""As much of a W&B server as a run needs to begin, to log and to end; on 127.0.0.1."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = {
    "id": "1",
    "name": "nightly-7",
    "displayName": "nightly-7",
    "config": "{}",
    "sweepName": None,
    "historyLineCount": 0,
    "project": {"id": "2", "name": "tests", "entity": {"id": "3", "name": "team"}},
}
ANSWERS: dict[str, Any] = {
    "RunResumeStatus": {
        "model": {
            "id": "2",
            "name": "tests",
            "entity": {"id": "3", "name": "team"},
            "bucket": None,
        }
    },
    "UpsertBucket": {"upsertBucket": {"bucket": BUCKET, "inserted": True}},
    "CreateRunFiles": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}},
}


@dataclass(kw_only=True, slots=True)
class WandbServer:
    """What was asked of it.

    Attributes:
        asked: operations of GraphQL, and paths of everything else.
        keys: what came as authorization.
        history: rows that arrived.
        upserts: variables of each `UpsertBucket`.
        exit_code: how the run ended, once it was told.
    """

    url: str
    asked: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    history: list[dict[str, Any]] = field(default_factory=list)
    upserts: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Note what is asked, and answer it."""
        if path == "/graphql":
            operation = body["operationName"]
            self.asked.append(operation)
            if operation == "UpsertBucket":
                self.upserts.append(body["variables"])
            return {"data": ANSWERS.get(operation, {})}
        self.asked.append(path)
        for line in body.get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
            self.history.append(json.loads(line))
        if body.get("complete"):
            self.exit_code = body["exitcode"]
        return {}


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Run a server for as long as the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            server.keys.add(self.headers["Authorization"])
            answer = json.dumps(server.answer(self.path, json.loads(body or b"{}"))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = WandbServer(url=f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield server
        http.shutdown()
        thread.join()
