"""A stand-in for the Hugging Face hub on 127.0.0.1, for clients that are told of it by ``HF_ENDPOINT``.

It serves models and data sets from local folders, read once when they are added, as one commit on ``main``, and takes
uploads of small files to models.
The clients (huggingface_hub, open_clip, datasets) run unmodified, best in a subprocess: they read the environment
when they are imported.

    with Hub() as hub:
        hub.add_dataset("flwrlabs/pacs", folder)
        subprocess.run([sys.executable, "-c", code], env=hub.environment(tmp_path / "hf"), check=True)
        assert "/datasets/flwrlabs/pacs/resolve/main/README.md" in hub.requests
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]

FILE = re.compile(r"/(?P<kind>datasets/|)(?P<repo>[^/]+(?:/[^/]+)?)/(?:resolve|raw)/(?P<revision>[^/]+)/(?P<path>.+)")
API = re.compile(
    r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+?(?:/[^/]+?)?)"
    r"(?:/(?P<what>revision|tree|paths-info)/(?P<revision>[^/]+)(?P<path>/.*)?)?/?"
)
UPLOAD = re.compile(
    r"/api/(?:models/(?P<repo>[^/]+/[^/]+)/)?(?P<what>preupload|commit|repos/create|validate-yaml)(?:/main)?"
)
DATE = "2024-01-01T00:00:00.000Z"


def _oid(content: bytes) -> str:
    """The name git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _entries(files: Files) -> dict[str, dict[str, Any]]:
    """The files and the folders above them, as the tree and paths-info calls describe them."""
    entries: dict[str, dict[str, Any]] = {}
    for path, content in sorted(files.items()):
        for folder in list(PurePosixPath(path).parents)[-2::-1]:
            entries[str(folder)] = {"type": "directory", "oid": _oid(b""), "size": 0, "path": str(folder)}
        entries[path] = {"type": "file", "oid": _oid(content), "size": len(content), "path": path}
    commit = {"id": "0" * 40, "title": "files", "date": DATE}
    return {path: {**entry, "lastCommit": commit} for path, entry in entries.items()}


class Hub(ThreadingHTTPServer):
    """The server: listens from its making until the end of the ``with`` block."""

    def __init__(self, revision: str = "0123456789abcdef0123456789abcdef01234567") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.revision = revision
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[str] = []  # the paths asked for, decoded, without their queries
        self.repositories: dict[tuple[str, str], Files] = {}
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def add_model(self, repo_id: str, folder: Path) -> None:
        self._add("models", repo_id, folder)

    def add_dataset(self, repo_id: str, folder: Path) -> None:
        self._add("datasets", repo_id, folder)

    def _add(self, kind: str, repo_id: str, folder: Path) -> None:
        found = [path for path in Path(folder).rglob("*") if path.is_file()]
        if not found:
            raise FileNotFoundError(f"no files in {folder}")
        self.repositories[kind, repo_id] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}

    def environment(self, home: Path) -> dict[str, str]:
        """The whole environment of a subprocess: this one, with every other hub setting and proxy taken out."""
        ours = re.compile(r"(HF|HUGGING_?FACE|TRANSFORMERS|DATASETS)_.*|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
        kept = {name: value for name, value in os.environ.items() if not ours.fullmatch(name)}
        told = {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "NO_PROXY": "*"}
        return {**kept, **told, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client may leave in the middle of a file
            super().handle()

    def log_message(self, *args: object) -> None:
        """Stay silent: ``Hub.requests`` is the log."""

    def do_GET(self) -> None:
        body = self._body()
        url = urlsplit(self.path)
        self.server.requests.append(unquote(url.path))
        if self.command == "POST" and (upload := UPLOAD.fullmatch(url.path)):
            return self._upload(upload["what"], upload["repo"], body)
        found = API.fullmatch(url.path) or FILE.fullmatch(url.path)
        if not found:
            return self._fail(404, "EntryNotFound", "Not found")
        asked = {name: unquote(value or "").strip("/") for name, value in found.groupdict().items()}
        files = self.server.repositories.get((asked["kind"] or "models", asked["repo"]))
        if files is None:  # the hub does not say whether a repository is missing or private
            return self._fail(401, "RepoNotFound", "Invalid username or password.")
        if asked["revision"] not in ("", "main", self.server.revision):
            return self._fail(404, "RevisionNotFound", f"Invalid rev id: {asked['revision']}")
        if found.re is FILE:
            if asked["path"] not in files:
                return self._fail(404, "EntryNotFound", "Entry not found")
            return self._file(files[asked["path"]])
        return self._api(asked, files, parse_qs(url.query), body)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _api(self, asked: dict[str, str], files: Files, query: dict[str, list[str]], body: bytes) -> None:
        entries, path = _entries(files), asked["path"]
        if asked["what"] == "tree":
            recursive = query.get("recursive", [""])[0].lower() in ("1", "true")
            if path and entries.get(path, {}).get("type") != "directory":
                return self._fail(404, "EntryNotFound", f"{path} does not exist on {asked['revision']}")
            inside = [name for name in entries if not path or name.startswith(f"{path}/")]
            depth = path.count("/") + 2 if path else 1
            return self._json([entries[name] for name in inside if recursive or name.count("/") < depth])
        if asked["what"] == "paths-info":
            as_json = "json" in self.headers.get("Content-Type", "")
            paths = json.loads(body)["paths"] if as_json else parse_qs(body.decode()).get("paths", [])
            return self._json([entries[name] for name in paths if name in entries])
        commit = {"sha": self.server.revision, "lastModified": DATE, "createdAt": DATE}
        flags = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        siblings = [{"rfilename": name} for name in sorted(files)]
        return self._json({"_id": "0" * 24, "id": asked["repo"], **commit, **flags, "siblings": siblings})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _upload(self, what: str, repo: str | None, body: bytes) -> None:
        """Make a model, say that every file may come as it is, or take the files of a commit."""
        if what == "validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if "Bearer secret" not in self.headers.get("Authorization", ""):
            return self._fail(401, "", "Invalid username or password.")
        if what == "repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.repositories.setdefault(("models", name), {})
            return self._json({"url": f"{self.server.endpoint}/{name}", "name": name, "id": "0" * 24})
        if what == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            return self._json({"files": [{"path": path, **plain} for path in paths]})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.server.repositories["models", str(repo)][line["value"]["path"]] = content
        address = f"{self.server.endpoint}/{repo}/commit/{self.server.revision}"
        return self._json({"commitUrl": address, "commitOid": self.server.revision, "hookOutput": ""})

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _fail(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
        self._send(status, json.dumps({"error": message}).encode(), headers)

    def _file(self, content: bytes) -> None:
        headers = {"ETag": f'"{_oid(content)}"', "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not part or not any(part.groups()):
            return self._send(200, content, headers)
        first, last = part.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        if start >= stop:
            return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return self._send(206, content[start:stop], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "X-Repo-Commit": self.server.revision, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
