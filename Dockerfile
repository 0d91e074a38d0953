# One image for the gateway, the streams job, the simulator and every Ray node, so their versions of Python, Ray and
# nats-py are the same. Each part is a command, listed in docs/operations.md; there is no entrypoint script.
#
# The base image is pinned by tag. To pin it by digest, resolve the tag and build with the digest:
#   docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=python:3.11-slim-bookworm@sha256:… -t deliberation-gateway:0.1.0 .
# Workspaces need git, which python:3.11-bookworm has (docs/workspaces.md).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.lock requirements-dev.lock ./
# The build backend comes from the lock too, because build isolation would install an unpinned one.
RUN sed -n '/^setuptools==/,/[^\\]$/p' requirements-dev.lock > build.lock \
    && pip install --require-hashes -r build.lock \
    && python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install --only-binary :all: --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE deliberation_gateway.py ./
COPY app app
COPY serve_deployments serve_deployments
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheel . \
    && pip --python /opt/venv/bin/python install --no-deps --no-index /wheel/*.whl

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="deliberation-gateway" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# The root file system may be read-only: Python writes no byte code, and Ray writes only to /tmp.
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RAY_USAGE_STATS_ENABLED=0
RUN groupadd --gid 10001 deliberate \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin deliberate \
    && install --directory --owner 10001 --group 10001 /data
COPY --from=build /opt/venv /opt/venv
USER 10001:10001
WORKDIR /data
# No HEALTHCHECK, because the parts need different ones, which compose.yaml and the manifests declare. For a gateway
# alone: --health-cmd 'python -c "import urllib.request as u; u.urlopen(\"http://127.0.0.1:8080/healthz\")"'
EXPOSE 8080
CMD ["python", "-m", "app.main"]
