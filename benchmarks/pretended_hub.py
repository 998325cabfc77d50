"""A hub on this machine, which speaks as much of the Hugging Face Hub's language as is needed."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import huggingface_hub.constants

TOKEN = "hf_of_nobody"


class Hub(BaseHTTPRequestHandler):
    """Repositories as dictionaries of files; who writes must say the token."""

    files: dict[str, dict[str, bytes]]
    status, headers_of_files = 200, dict[str, str]()  # of answers about files

    def log_message(self, *_: object) -> None: ...

    def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401)
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'somebody'}/{asked['name']}"
            self.files.setdefault(name, {})
            return self.answer(200, json.dumps({"url": f"http://{self.headers['Host']}/{name}"}).encode())
        if parts == ["api", "validate-yaml"]:
            return self.answer(200, json.dumps({"errors": [], "warnings": []}).encode())
        name = "/".join(parts[2:4])
        if parts[4] == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for each in json.loads(body)["files"]
            ]
            return self.answer(200, json.dumps({"files": files}).encode())
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        url = f"http://{self.headers['Host']}/{name}/commit/{'c' * 40}"
        self.answer(200, json.dumps({"success": True, "commitOid": "c" * 40, "commitUrl": url}).encode())
        return None

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve" or "/".join(parts[:2]) not in self.files:
            return self.answer(404, X_Error_Code="RepoNotFound")
        if parts[3] not in ("main", "c" * 40, "v1"):
            return self.answer(404, X_Error_Code="RevisionNotFound")
        found = self.files["/".join(parts[:2])].get("/".join(parts[4:]))
        if found is None:
            return self.answer(404, X_Error_Code="EntryNotFound")
        told = {"ETag": f'"{hashlib.sha256(found).hexdigest()}"', "X-Repo-Commit": "c" * 40} | self.headers_of_files
        return self.answer(self.status, found, **told)

    do_HEAD = do_GET  # noqa: N815


@contextlib.contextmanager
def serving(cache: Path) -> Iterator[dict[str, dict[str, bytes]]]:
    """The repositories of a hub that runs meanwhile, as if HF_ENDPOINT had been this one from the beginning."""
    Hub.files, Hub.status, Hub.headers_of_files = {}, 200, {}  # whatever another test has left
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    told = {"HF_HUB_CACHE": str(cache), "HF_TOKEN_PATH": str(cache / "no-token"), "HF_HUB_OFFLINE": False}
    told |= {"HF_HUB_DISABLE_PROGRESS_BARS": True} | endpoint(f"http://127.0.0.1:{server.server_port}")
    try:
        with (
            mock.patch.multiple(huggingface_hub.constants, **told),
            mock.patch("huggingface_hub.utils._http.time.sleep"),  # between its retries
            mock.patch.dict("os.environ", HF_TOKEN=TOKEN),
        ):
            yield Hub.files
    finally:
        server.shutdown()
        server.server_close()


def endpoint(url: str) -> dict[str, str]:
    """The library's constants that tell where the hub is."""
    return {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}"}
