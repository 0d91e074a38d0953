"""Experiments on choosing among drafts: `single`, `best_of_n` and `council`."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from app.deliberation.outputs import Answer, Revision, parse_output
from app.quality.closed_forms import (
    escalated,
    expected,
    kept_and_mended,
    selected_by_many,
    selected_by_one_mind,
    selected_of_versions,
)
from app.quality.experiments import Experiment, law_of, short
from app.quality.figures import Figure, share
from app.quality.minds import RIGHT, AgentModel
from app.quality.trials import Setting, Trial

# So many drafts `auto` asks for before it decides.
_DRAFTS_FIRST = 3


def selections() -> Iterator[Experiment]:
    """One answer, the best of several, and councils that revise."""
    yield Experiment(about="p=.7", setting=Setting(strategy="single", agents=3), right=0.7, calls=1)
    yield from _best_of_n()
    yield from _councils()
    yield from _autos()


def _best_of_n() -> Iterator[Experiment]:
    for agents, correlation in ((3, 0.0), (5, 0.0), (5, 0.44)):
        nature = AgentModel(accuracy=0.7, correlation=correlation, judge=0.8)
        setting = Setting(strategy="best_of_n", agents=agents, nature=nature)
        yield Experiment(
            about=f"N={agents} p=.7 ρ={short(correlation)} q=.8, reviewers alone",
            setting=setting,
            right=expected(law_of(setting), selected_by_many(agents, nature.judge)),
            calls=2 * agents,
        )
    nature = AgentModel(accuracy=0.7, judge=0.8, one_jury=True)
    setting = Setting(strategy="best_of_n", agents=5, nature=nature)
    yield Experiment(
        about="N=5 p=.7 q=.8, reviewers of one mind",
        setting=setting,
        right=expected(law_of(setting), selected_by_one_mind(setting.agents, nature.judge)),
        calls=10,
    )


def _councils() -> Iterator[Experiment]:
    # A critic that sees more faults where there are some; a revision that mends more than it spoils.
    sober = AgentModel(accuracy=0.6, fix=0.4, harm=0.2, detect=0.9, alarm=0.3, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics .9/.3", sober, 1)
    yield _council("p=.6 u=.4 h=.2, two critics .9/.3", sober, 1, critics=2)
    # A critic that always finds something, so that everybody revises in every round.
    eager = AgentModel(accuracy=0.6, fix=0.4, harm=0.2, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics never content", eager, 2)
    # (1-p)u = ph: what revisions mend they spoil again.
    neutral = AgentModel(accuracy=0.7, fix=0.28, harm=0.12, judge=0.8, one_jury=True)
    yield _council("p=.7 u=.28 h=.12, neutral", neutral, 2)


def _council(about: str, nature: AgentModel, rounds: int, critics: int = 1) -> Experiment:
    """Three agents; where critics may be content there is one round, which no early end can cut."""
    agents = 3
    setting = Setting(strategy="council", agents=agents, nature=nature, rounds=rounds, parameters={"critics": critics})
    # One of several critics is enough for a revision.
    detect, alarm = (1 - (1 - rate) ** critics for rate in (nature.detect, nature.alarm))
    kept, mended = kept_and_mended(detect * nature.fix, alarm * nature.harm, rounds)
    revised = nature.accuracy * alarm + (1 - nature.accuracy) * detect
    drift = nature.accuracy * kept + (1 - nature.accuracy) * mended

    def last_versions(found: Sequence[Trial]) -> Iterable[Figure]:
        yield share("last version right", [right for trial in found for right in last_right(trial)], drift)

    return Experiment(
        about=f"N={agents} R={rounds} {about}",
        setting=setting,
        right=expected(law_of(setting), selected_of_versions(agents, kept, mended, nature.judge)),
        calls=agents * (2 + rounds * (critics + revised)),
        extra=last_versions,
    )


def last_right(trial: Trial) -> list[bool]:
    """Whether each author's last version is right."""
    last: dict[str, str] = {}
    for asked in (*trial.of("propose"), *trial.of("revise")):
        written = parse_output(asked.call.output, asked.text or "")
        assert isinstance(written, Answer | Revision)
        last[asked.call.agent_id] = written.answer
    return [text == RIGHT for text in last.values()]


def _autos() -> Iterator[Experiment]:
    """Three drafts first, and a stronger method where they differ."""
    for correlation in (0.0, 0.44):
        nature = AgentModel(accuracy=0.7, correlation=correlation, judge=0.8)
        about = f"N=5 p=.7 ρ={short(correlation)} q=.8, on to best_of_n"
        yield _auto(about, 5, nature, "best_of_n", selected_by_many(5, nature.judge), calls=10)
    nature = AgentModel(accuracy=0.7, fix=0.4, harm=0.2, judge=0.8, one_jury=True)
    kept, mended = kept_and_mended(nature.fix, nature.harm, 1)
    given = selected_of_versions(3, kept, mended, nature.judge)
    yield _auto("N=3 R=1 p=.7 u=.4 h=.2 q=.8, on to council", 3, nature, "council", given, calls=12)


def _auto(
    about: str, agents: int, nature: AgentModel, on_to: str, given: Callable[[int], float], calls: float
) -> Experiment:
    parameters = {"normaliser": "number", "escalate_to": on_to}
    setting = Setting(strategy="auto", agents=agents, nature=nature, parameters=parameters)
    predicted = escalated(law_of(setting), _DRAFTS_FIRST, given, calls)
    return Experiment(about=about, setting=setting, right=predicted.right, calls=predicted.calls)
