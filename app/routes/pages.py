"""Pages for browsers: the dashboard at /, and the page of the OpenAPI document at /docs.

The gateway serves all their assets, and their Content-Security-Policy blocks any others.
"""

import base64
import gzip
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

UI = Path(__file__).parents[1] / "ui"
_SWAGGER = Path(str(files("fastapi_offline") / "static"))
_MEDIA = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_POLICY = "default-src 'none'; img-src data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; "
# No page that opened this one keeps a handle on its window.
_OPENER = {"Cross-Origin-Opener-Policy": "same-origin"}
_DASHBOARD_POLICY = f"{_POLICY}form-action 'none'; script-src 'self'; style-src 'self'"


@lru_cache(maxsize=2)
def _docs(title: str) -> tuple[bytes, str]:
    html = bytes(
        get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=title,
            swagger_js_url="/docs/swagger-ui-bundle.js",
            swagger_css_url="/docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        ).body
    )
    (script,) = re.findall(rb"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return html, f"{_POLICY}form-action 'self'; script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'"


@lru_cache(maxsize=128)
def _content(path: Path, changed_at_ns: int, *, compressed: bool) -> bytes:
    content = path.read_bytes()
    return gzip.compress(content) if compressed else content


def _asset(path: Path, request: Request, headers: dict[str, str]) -> Response:
    """A file, compressed for clients that take that: it is a quarter of the bytes."""
    compressed = "gzip" in request.headers.get("Accept-Encoding", "")
    encoding = {"Content-Encoding": "gzip"} if compressed else {}
    content = _content(path, path.stat().st_mtime_ns, compressed=compressed)
    return Response(content, media_type=_MEDIA[path.suffix], headers={**headers, **encoding, "Vary": "Accept-Encoding"})


def install_pages(app: FastAPI, *, title: str) -> None:
    """Serve both pages and their assets. The pages need no key: their requests for data carry one."""

    def docs() -> Response:
        html, policy = _docs(title)
        return Response(html, media_type="text/html", headers=_OPENER | {"Content-Security-Policy": policy})

    def serve(url: str, path: Path, headers: dict[str, str]) -> None:
        def served(request: Request) -> Response:
            return _asset(path, request, headers)

        app.add_api_route(url, served, include_in_schema=False)

    app.add_api_route("/docs", docs, include_in_schema=False)
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        serve(f"/docs/{name}", _SWAGGER / name, {"Cache-Control": "max-age=3600"})
    fresh = {"Cache-Control": "no-cache"}
    serve("/", UI / "index.html", fresh | _OPENER | {"Content-Security-Policy": _DASHBOARD_POLICY})
    for path in sorted([*UI.glob("*.css"), *UI.glob("*.js"), *UI.glob("vendor/*.js")]):
        serve(f"/ui/{path.relative_to(UI)}", path, fresh)
