from app.log.journal import JetStreamJournal
from benchmarks.stalled import COST_MAX_KIB, GONE_MAX_S, measured
from tests.conftest import NatsServer


async def test_a_stalled_reader_costs_little_and_its_connection_is_closed(
    nats_server: NatsServer, jetstream_journal: JetStreamJournal
) -> None:
    cost = await measured(jetstream_journal, nats_server.url, 60, GONE_MAX_S, STREAM_SEND_TIMEOUT="2")
    assert len(cost.gone_s) == 60, "every connection is closed"
    assert 0 < cost.unsent_kib and cost.each_kib <= COST_MAX_KIB
