"""Experiments on choosing among drafts: `single`, `best_of_n` and `council`."""

from collections.abc import Iterable, Iterator, Sequence

from app.deliberation.outputs import Answer, Revision, parse_output
from app.quality.closed_forms import (
    expected,
    kept_and_mended,
    selected_by_many,
    selected_by_one_mind,
    selected_of_versions,
)
from app.quality.experiments import Experiment, law_of, short
from app.quality.figures import Figure, share
from app.quality.minds import RIGHT, Nature
from app.quality.trials import Setting, Trial


def selections() -> Iterator[Experiment]:
    """One answer, the best of several, and councils that revise."""
    yield Experiment(about="p=.7", setting=Setting(strategy="single", agents=3), right=0.7, calls=1)
    yield from _best_of_n()
    yield from _councils()


def _best_of_n() -> Iterator[Experiment]:
    for agents, correlation in ((3, 0.0), (5, 0.0), (5, 0.44)):
        nature = Nature(accuracy=0.7, correlation=correlation, judge=0.8)
        setting = Setting(strategy="best_of_n", agents=agents, nature=nature)
        yield Experiment(
            about=f"N={agents} p=.7 ρ={short(correlation)} q=.8, reviewers alone",
            setting=setting,
            right=expected(law_of(setting), selected_by_many(agents, nature.judge)),
            calls=2 * agents,
        )
    nature = Nature(accuracy=0.7, judge=0.8, one_jury=True)
    setting = Setting(strategy="best_of_n", agents=5, nature=nature)
    yield Experiment(
        about="N=5 p=.7 q=.8, reviewers of one mind",
        setting=setting,
        right=selected_by_one_mind(law_of(setting), nature.judge),
        calls=10,
    )


def _councils() -> Iterator[Experiment]:
    # A critic that sees more faults where there are some; a revision that mends more than it spoils.
    sober = Nature(accuracy=0.6, fix=0.4, harm=0.2, detect=0.9, alarm=0.3, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics .9/.3", sober, 1)
    # A critic that always finds something, so that everybody revises in every round.
    eager = Nature(accuracy=0.6, fix=0.4, harm=0.2, judge=0.8, one_jury=True)
    yield _council("p=.6 u=.4 h=.2, critics never content", eager, 2)
    # (1-p)u = ph: what revisions mend they spoil again.
    neutral = Nature(accuracy=0.7, fix=0.28, harm=0.12, judge=0.8, one_jury=True)
    yield _council("p=.7 u=.28 h=.12, neutral", neutral, 2)


def _council(about: str, nature: Nature, rounds: int) -> Experiment:
    """Three agents; where critics may be content there is one round, which no early end can cut."""
    agents = 3
    setting = Setting(strategy="council", agents=agents, nature=nature, rounds=rounds)
    kept, mended = kept_and_mended(nature.detect * nature.fix, nature.alarm * nature.harm, rounds)
    revised = nature.accuracy * nature.alarm + (1 - nature.accuracy) * nature.detect
    drift = nature.accuracy * kept + (1 - nature.accuracy) * mended

    def last_versions(found: Sequence[Trial]) -> Iterable[Figure]:
        yield share("last version right", [right for trial in found for right in last_right(trial)], drift)

    return Experiment(
        about=f"N={agents} R={rounds} {about}",
        setting=setting,
        right=selected_of_versions(law_of(setting), kept, mended, nature.judge),
        calls=agents * (2 + rounds * (1 + revised)),
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
