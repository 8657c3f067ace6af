"""A stand-in for the Hugging Face Hub, which cannot be reached here: what huggingface_hub asks of it, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Attributes: files: path -> content of the only repository; created: bodies of requests to make one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.created: list[dict[str, object]] = []
        self.refuses = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.refuses:
            return self._answer({"error": "Invalid username or password."}, status=401)
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self._answer({"url": f"{self.server.url}/me/agent", "name": "me/agent"})
        if "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            return self._answer({"files": [{**file, "shouldIgnore": False} for file in files]})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[line["value"]["path"]]
            url = f"{self.server.url}/me/agent/commit/{COMMIT}"
            return self._answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self._answer({})

    def do_GET(self) -> None:
        if self.path == "/api/whoami-v2":
            if self.server.refuses:
                return self._answer({"error": "Invalid username or password."}, status=401)
            return self._answer({"name": "me"})
        if self.path.startswith("/api/models/me/agent/tree/"):
            return self._answer(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in self.server.files.items()
                ]
            )
        if self.path.startswith("/api/models/me/agent"):
            files = [{"rfilename": name} for name in self.server.files]
            return self._answer({"id": "me/agent", "modelId": "me/agent", "sha": COMMIT, "siblings": files})
        content = self.server.files.get(self.path.partition(f"/resolve/{COMMIT}/")[2])
        if content is None:
            return self._answer({"error": "Repository not found"}, status=404, X_Error_Code="RepoNotFound")
        self.send_response(200)
        for name, value in (
            ("Content-Length", str(len(content))),
            ("X-Repo-Commit", COMMIT),
            ("ETag", f'"{hashlib.sha1(content).hexdigest()}"'),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)
        return None

    do_HEAD = do_GET  # noqa: N815 - as the base class names it

    def _answer(self, content: object, *, status: int = 200, **headers: str) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None: ...


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
