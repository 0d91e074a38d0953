"""`deliberate bench quality`: measures the benefit of deliberation, with simulated agents or with real models."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.bench.engines import Plan, gateway_before, measure, read_dataset
from app.cli.bench.proof import proof
from app.cli.client import GatewayClient
from app.cli.exits import Exit, run
from app.cli.options import ApiKeyOption, JsonOption
from app.cli.stack.up import EngineOption
from app.deliberation.strategies import STRATEGIES

_RUNS = 1_000
_STRATEGIES = ("single", "vote", "best_of_n", "council")
# It has no verdict that could be right.
_WITHOUT_VERDICT = ("independent",)
# Its verdict is a program and not an answer.
_OF_PROGRAMS = "execute"


def _checked_strategies(values: list[str] | None) -> list[str]:
    for value in values or []:
        if value not in STRATEGIES or value in _WITHOUT_VERDICT:
            known = ", ".join(name for name in STRATEGIES if name not in _WITHOUT_VERDICT)
            raise typer.BadParameter(f"{value!r} has no verdict to measure; choose one of {known}")
    return list(dict.fromkeys(values or []))


def _dataset_needed(**given: object) -> None:
    """Reject options that have no meaning without a data set."""
    for name, value in given.items():
        if value not in (None, ()):
            raise typer.BadParameter(f"--{name.replace('_', '-')} needs --dataset: the proof uses no engine")


# Long because typer reads the options from the signature.
def quality(
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            callback=_checked_strategies,
            help=f"Only this strategy; repeatable. (default: all; with --dataset {', '.join(_STRATEGIES)})",
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=20, help="Deliberations per row of the proof. (default: 1000)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**40, help="Seed of the proof or of the deliberations.")] = 1,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Questions with answers, to measure a real model.")
    ] = None,
    engine_url: EngineOption = None,
    url: Annotated[str | None, typer.Option("--url", help="Use this running gateway and start none.")] = None,
    api_key: ApiKeyOption = None,
    model: Annotated[str | None, typer.Option(help="Model of every agent. (default: the role's)")] = None,
    role: Annotated[str | None, typer.Option(help="Role of every agent. (default: DEV)")] = None,
    num_agents: Annotated[int | None, typer.Option(min=1, max=32, help="Agents of each council. (default: 3)")] = None,
    rounds: Annotated[int | None, typer.Option(min=0, max=5, help="Rounds, for strategies that have them.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of questions to use. (default: all)")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="Deadline of each deliberation. (default: 300)")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="Deliberations at a time. (default: 4)")
    ] = None,
    baseline: Annotated[
        bool | None,
        typer.Option(help="Also run a plain vote with as many calls. (default: yes)", show_default=False),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Keep the stack's logs and facts here."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the benefit of deliberation with simulated agents or with a real model.

    Without --dataset, every strategy runs in this process with simulated agents of known accuracy, correlation and
    bias. The results are compared with closed forms and their 3σ bands; a figure outside its band exits with 1. With
    --dataset it reports accuracy with its interval, cost per right answer, flips, unreadable answers, and the plain
    vote with as many calls.
    """
    if dataset is None:
        _dataset_needed(
            engine_url=tuple(engine_url or ()), url=url, model=model, role=role, num_agents=num_agents, rounds=rounds,
            limit=limit, timeout=timeout, concurrency=concurrency, baseline=baseline, data_dir=data_dir,
        )  # fmt: skip
        run(lambda: proof(strategy or (), runs or _RUNS, seed, as_json=as_json), as_json=as_json)
    if runs is not None:
        raise typer.BadParameter("--runs belongs to the proof; --limit bounds the questions of a data set")
    if _OF_PROGRAMS in (strategy or ()):
        raise typer.BadParameter(f"{_OF_PROGRAMS} writes programs, but a data set needs answers")
    if (url is None) == (not engine_url):
        raise typer.BadParameter("give either --engine-url, repeatable, or the --url of a running gateway")
    if url is not None and data_dir is not None:
        raise typer.BadParameter("--data-dir belongs to a stack that is started here, and not to the gateway at --url")
    engines = tuple(engine_url or ())
    plan = Plan(
        strategies=tuple(strategy or _STRATEGIES),
        agents=num_agents or 3,
        role=role or "DEV",
        model=model,
        rounds=rounds,
        timeout_s=timeout or 300,
        seed=seed,
        concurrency=concurrency or 4,
        baseline=baseline is not False,
    )

    async def work() -> Exit:
        # Read before anything starts, so that an invalid row costs nothing.
        questions = read_dataset(dataset, limit)
        async with GatewayClient(url, api_key) if url is not None else gateway_before(engines, data_dir) as gateway:
            await measure(gateway, plan, dataset.name, questions, as_json=as_json)
        return Exit.SUCCESS

    run(work, as_json=as_json)
