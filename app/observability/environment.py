"""The tracer that the standard OTEL_* variables ask for.

Without these variables there is no tracer, and OpenTelemetry's SDK is not imported.
"""

import os

import structlog

from app.observability.traces import Tracer

PROTOCOL = "http/protobuf"

log = structlog.get_logger(__name__)


def tracer_of_environment(part: str) -> Tracer | None:
    """The tracer of a part of the gateway, or None. Another exporter or protocol than OTLP over HTTP is logged."""
    variable = os.environ.get
    if variable("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = variable("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoint = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporter == "none" or not (exporter or endpoint):
        return None
    protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variable("OTEL_EXPORTER_OTLP_PROTOCOL") or PROTOCOL
    if exporter not in ("", "otlp") or protocol != PROTOCOL:
        log.error("traces_off", exporter=exporter or "otlp", protocol=protocol, possible=f"otlp over {PROTOCOL}")
        return None
    # Imported here, because it costs 0.15 s and 12 MB.
    from app.observability.otlp import OtlpTracer

    return OtlpTracer(part)
