"""The page that shows the OpenAPI document, served from here in full: it needs no Internet, and runs nobody's code."""

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse

_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


@lru_cache(maxsize=2)
def _page(title: str) -> tuple[bytes, str]:
    """The page, and the policy that lets its one inline script run and nothing from elsewhere."""
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
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    return html, policy


def install_page(app: FastAPI, *, title: str) -> None:
    """Serve the page at /docs, and what it is made of below."""

    def page() -> Response:
        html, policy = _page(title)
        return Response(html, media_type="text/html", headers={"Content-Security-Policy": policy})

    def served(name: str, media_type: str) -> None:
        path = Path(str(files("fastapi_offline") / "static" / name))

        def asset() -> FileResponse:
            return FileResponse(path, media_type=media_type, headers={"Cache-Control": "max-age=3600"})

        app.add_api_route(f"/docs/{name}", asset, include_in_schema=False)

    app.add_api_route("/docs", page, include_in_schema=False)
    for name, media_type in _ASSETS.items():
        served(name, media_type)
