"""A connection that fails again and again says so once."""

from structlog.testing import capture_logs

from app.log.journal import JetStreamJournal


async def test_an_error_is_logged_once_until_it_changes_or_the_connection_is_back() -> None:
    journal = JetStreamJournal("nats://127.0.0.1:1", name="tests")
    with capture_logs() as logs:
        for error in ("refused", "refused", "lost", "lost"):
            await journal._failed(OSError(error))  # pyright: ignore[reportPrivateUsage] -- the driver calls it
        await journal._reconnected()  # pyright: ignore[reportPrivateUsage]
        await journal._failed(OSError("lost"))  # pyright: ignore[reportPrivateUsage]

    told = [entry["error"] for entry in logs if entry["event"] == "journal_connection_error"]
    assert told == ["OSError('refused')", "OSError('lost')", "OSError('lost')"]
