"""`deliberate bench quality`: measures the benefit of deliberation, with simulated agents or with real models."""

from pathlib import Path
from typing import Annotated

import typer

from app.api.suggestions import did_you_mean
from app.cli.bench.engines import Plan, gateway_before, measure, read_dataset
from app.cli.bench.proof import proof
from app.cli.exits import Exit, run
from app.cli.options import ApiKeyOption, JsonOption, UrlOption
from app.cli.stack.up import EngineOption
from app.cli.target import gateway_client
from app.deliberation.strategies import STRATEGIES

_STRATEGIES = ("single", "vote", "best_of_n", "council")
# It has no verdict that could be right.
_WITHOUT_VERDICT = ("independent",)
# Its verdict is a program and not an answer.
_OF_PROGRAMS = "execute"
_OF_THE_PROOF = ("strategy", "runs", "seed", "api_key", "as_json")


def _checked_strategies(values: list[str] | None) -> list[str]:
    for value in values or []:
        if value not in STRATEGIES or value in _WITHOUT_VERDICT:
            known = ", ".join(name for name in STRATEGIES if name not in _WITHOUT_VERDICT)
            meant = did_you_mean(value, STRATEGIES)
            raise typer.BadParameter(f"{value!r} has no verdict to measure. {meant}Choose one of {known}")
    return list(dict.fromkeys(values or []))


def _given(context: typer.Context, name: str) -> bool:
    """Whether the command line sets the option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_sources(context: typer.Context, strategies: list[str], data_dir: Path | None, *, at_url: bool) -> None:
    """Reject options that contradict a measurement over a data set; raises typer.BadParameter."""
    if _given(context, "runs"):
        raise typer.BadParameter("--runs belongs to the proof; --limit bounds the questions of a data set")
    if _OF_PROGRAMS in strategies:
        raise typer.BadParameter(f"{_OF_PROGRAMS} writes programs, but a data set needs answers")
    if at_url and _given(context, "engine_url"):
        raise typer.BadParameter("give either --engine-url, repeatable, or the --url of a running gateway")
    if at_url and data_dir is not None:
        raise typer.BadParameter("give --url or --data-dir, not both: each names a stack")


StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        callback=_checked_strategies,
        help=f"Only this strategy; repeatable. (default: all; with --dataset {', '.join(_STRATEGIES)})",
    ),
]
RunsOption = Annotated[
    int | None,
    typer.Option(min=20, help="Deliberations per row of the proof. (default: 1000, more for cheap rows)"),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        file_okay=False,
        help="Use the stack that runs in this directory; with --engine-url, keep that stack's logs and facts here.",
    ),
]
DatasetOption = Annotated[
    Path | None, typer.Option(metavar="FILE.jsonl", help="Questions with answers, to measure a real model.")
]


def quality(
    context: typer.Context,
    strategy: StrategyOption = None,
    runs: RunsOption = None,
    seed: Annotated[int, typer.Option(min=0, max=2**40, help="Seed of the proof or of the deliberations.")] = 1,
    dataset: DatasetOption = None,
    engine_url: EngineOption = None,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    model: Annotated[str | None, typer.Option(help="Model of every agent. (default: the role's)")] = None,
    role: Annotated[str, typer.Option(help="Role of every agent.")] = "DEV",
    agents: Annotated[int, typer.Option(min=1, max=32, help="Agents of each council.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=0, max=5, help="Rounds, for strategies that have them.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of questions to use. (default: all)")] = None,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Deadline of each deliberation.")] = 300,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Deliberations at a time.")] = 4,
    baseline: Annotated[bool, typer.Option(help="Also run a plain vote with as many calls.")] = True,
    data_dir: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the benefit of deliberation with simulated agents or with a real model.

    Without --dataset, every strategy runs in this process with simulated agents of known accuracy, correlation and
    bias. The results are compared with closed forms and their 3σ bands; a figure outside its band exits with 1. With
    --dataset it reports accuracy with its interval, cost per right answer, flips, unreadable answers, and the plain
    vote with as many calls. It asks the running gateway, or one that it starts before --engine-url.
    """
    if dataset is None:
        for name in context.params:
            if name not in _OF_THE_PROOF and _given(context, name):
                raise typer.BadParameter(f"--{name.replace('_', '-')} needs --dataset: the proof uses no engine")
        run(lambda: proof(strategy or (), runs, seed, as_json=as_json), as_json=as_json)
    # The first complaint, and before anything starts: an invalid row costs nothing.
    questions = read_dataset(dataset, limit)
    _check_sources(context, strategy or [], data_dir, at_url=url is not None)
    engines = tuple(engine_url or ())
    plan = Plan(
        strategies=tuple(strategy or _STRATEGIES),
        agents=agents,
        role=role,
        model=model,
        rounds=rounds,
        timeout_s=timeout,
        seed=seed,
        concurrency=concurrency,
        baseline=baseline,
    )

    async def work() -> Exit:
        source = gateway_before(engines, data_dir) if engines else gateway_client(url, data_dir, api_key)
        async with source as gateway:
            await measure(gateway, plan, dataset.name, questions, as_json=as_json)
        return Exit.SUCCESS

    run(work, as_json=as_json)
