"""Files over HTTP on 127.0.0.1, with the faults that mirrors have.

with FileServer({"a.zip": content}, faults={"a.zip": "truncated"}) as server:
    download(server.url("a.zip"), target)
    assert server.requests == [("a.zip", "bytes=10-")]
"""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class FileServer(ThreadingHTTPServer):
    """The server: ``requests`` are the names asked for, each with its Range.

    A file in ``faults`` is ``truncated`` (each answer ends after a third of what is left), ``stuck`` (it ends after the
    first byte, and then nothing comes), ``slow`` (half comes, and the rest never), ``deaf`` (it ignores ranges), or
    ``page`` (HTML instead).
    """

    def __init__(self, files: dict[str, bytes], faults: dict[str, str] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.faults, self.requests = files, faults or {}, []
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        name, asked = urlsplit(self.path).path[1:], self.headers.get("Range", "")
        self.server.requests.append((name, asked))
        fault, content = self.server.faults.get(name), self.server.files.get(name)
        if content is None:
            return self.send_error(404)
        if fault == "page":
            return self._send(200, b"<html>sign in</html>", {"Content-Type": "text/html"})
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and fault != "deaf" else 0
        if start and start >= len(content):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        rest = content[start:]
        sent = {"truncated": rest[: max(len(rest) // 3, 1000)], "stuck": rest[: int(not start)]}.get(fault or "", rest)
        headers = {"Content-Type": "application/zip"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._send(206 if start else 200, sent, {**headers, "Content-Length": str(len(rest))})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.server.faults.get(self.path[1:]) == "slow":
                self.wfile.write(body[: len(body) // 2])
                self.server.ended.wait()
                return
            self.wfile.write(body)
