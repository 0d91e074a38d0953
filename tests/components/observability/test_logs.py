import io
import json
import logging

import pytest
import structlog

from app.observability import logs


class FullDisk(io.StringIO):
    room = False

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError("No space left on device")
        return super().write(text)

    def flush(self) -> None:
        if not self.room:
            raise OSError("No space left on device")


def test_a_full_disk_does_not_fail_the_code_that_logs() -> None:
    output = FullDisk()
    logs.configure("info", output)
    structlog.get_logger().info("lost")
    logging.getLogger("library").warning("lost too")
    output.room = True
    structlog.get_logger().info("kept")
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == ["kept"]


def test_replicas_log_to_standard_output_and_never_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    output = FullDisk()
    monkeypatch.setattr("sys.stdout", output)
    logs.outlast_output()
    structlog.get_logger().info("lost")
    output.room = True
    structlog.get_logger().info("kept")
    assert "kept" in output.getvalue() and "lost" not in output.getvalue()


def test_replicas_log_one_json_object_a_line_and_no_text_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    logs.outlast_output()
    hostile = 'a\n{"event": "forged"}\r\x1b[2J\u2028\u202e"'
    structlog.get_logger().info("output_invalid", error=hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        structlog.get_logger().exception("call_broke")
    lines = output.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["output_invalid", "call_broke"]
    assert "forged" not in lines[1] and json.loads(lines[1])["error"] == "ValueError"
