"""Git over HTTP for tests: git's own `http-backend` behind a server that asks for credentials, or answers late."""

import http.server
import os
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.repositories import ENVIRONMENT


@dataclass
class GitServer:
    """A server of the repositories below `folder`. `asked` has path and `Authorization` of each request.

    Paths below `private` need `authorization`; a server that `reflects` repeats a wrong one as git's error. Those below
    a key of `redirects` lead to its value, and those below `slow` wait until `release` is set. A `plain` server knows
    nothing of git: it sends files.
    """

    folder: Path
    authorization: str = ""
    private: str = "/private/"
    slow: str = "/slow/"
    redirects: dict[str, str] = field(default_factory=dict[str, str])
    reflects: bool = False
    plain: bool = False
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    release: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _handler(server: GitServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            server.asked.append((self.path, authorization))
            if self.path.startswith(server.slow):
                server.release.wait(60)
            for begin, target in server.redirects.items():
                if self.path.startswith(begin):
                    self._plain(302, "", ("Location", target + self.path.removeprefix(begin)))
                    return
            if self.path.startswith(server.private) and authorization != server.authorization:
                if server.reflects:
                    self._reflect(authorization)
                else:
                    self._plain(403 if authorization else 401, "", ("WWW-Authenticate", "Basic"))
                return
            path = server.folder / urlsplit(self.path).path.lstrip("/")
            if not server.plain:
                self._backend()
            elif path.is_file():
                self._plain(200, path.read_text())
            else:
                self._plain(404, "")

        do_POST = do_GET

        def _plain(self, status: int, text: str, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Type", "text/plain"), ("Content-Length", str(len(text)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def _reflect(self, authorization: str) -> None:
            told = f"ERR refused: {authorization}"
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            self.wfile.write(f"{len(told) + 4:04x}{told}0000".encode())

        def _backend(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            environment = {
                **ENVIRONMENT,
                "GIT_PROJECT_ROOT": str(server.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": parts.path,
                "QUERY_STRING": parts.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            answered = subprocess.run(
                ["git", "-c", "safe.directory=*", "http-backend"],
                input=body, env=environment, capture_output=True, check=True,
            ).stdout  # fmt: skip
            head, _, content = answered.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in (*headers.items(), ("Content-Length", str(len(content)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def git_server(folder: Path, **options: Any) -> Generator[GitServer]:
    server = GitServer(folder, **options)
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    listening.daemon_threads = True
    server.port = listening.server_port
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.release.set()
        listening.shutdown()
        listening.server_close()


def processes_with(text: str) -> list[str]:
    """The processes of this machine with the text in their arguments or environment."""
    found = list[str]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            for name in ("cmdline", "environ"):
                try:
                    if text.encode() in (folder / name).read_bytes():
                        found.append(f"{folder.name}/{name}")
                except OSError:
                    continue
    return found
