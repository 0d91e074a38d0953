"""`deliberate bench quality`: what deliberation is worth, proved on seeded minds or measured on real models."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from app.cli.bench.engines import Plan, Where, gateway_at, measure, read_dataset
from app.cli.bench.proof import proof
from app.cli.exits import Exit, run
from app.cli.options import ApiKeyOption, JsonOption
from app.cli.stack.up import EngineOption
from app.deliberation.strategies import STRATEGIES

_RUNS = 1_000
_STRATEGIES = ("single", "vote", "best_of_n", "council")
# It ranks nothing, so that there is no verdict to be right or wrong.
_WITHOUT_VERDICT = ("independent",)
# Its verdict is a program, which is no answer to a question.
_OF_PROGRAMS = "execute"


def _checked_strategies(values: list[str] | None) -> list[str]:
    for value in values or []:
        if value not in STRATEGIES or value in _WITHOUT_VERDICT:
            known = ", ".join(name for name in STRATEGIES if name not in _WITHOUT_VERDICT)
            raise typer.BadParameter(f"{value!r} gives no verdict to measure: choose of {known}")
    return list(dict.fromkeys(values or []))


def _dataset_needed(**given: object) -> None:
    """Options that mean nothing without a data set are refused, not passed over."""
    for name, value in given.items():
        if value not in (None, ()):
            raise typer.BadParameter(f"--{name.replace('_', '-')} goes with --dataset: the proof asks no engine")


# Long by its options alone: typer reads them off the signature.
def quality(
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            callback=_checked_strategies,
            help=f"Only this one; repeatable. (default: all; with --dataset {', '.join(_STRATEGIES)})",
        ),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=20, help="Deliberations for each row of the proof. (default: 1000)")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**40, help="Same seed, same proof and same deliberations.")] = 1,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Questions with answers: measure a real model on them.")
    ] = None,
    engine_url: EngineOption = None,
    url: Annotated[str | None, typer.Option("--url", help="Ask the gateway that runs there; start none.")] = None,
    api_key: ApiKeyOption = None,
    model: Annotated[str | None, typer.Option(help="Model of every agent. (default: the role's)")] = None,
    role: Annotated[str | None, typer.Option(help="Role of every agent. (default: DEV)")] = None,
    num_agents: Annotated[int | None, typer.Option(min=1, max=32, help="Agents of each council. (default: 3)")] = None,
    rounds: Annotated[int | None, typer.Option(min=0, max=5, help="Rounds, where a strategy has them.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first questions.")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="Deadline of each deliberation. (default: 300)")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="Deliberations at a time. (default: 4)")
    ] = None,
    baseline: Annotated[
        bool | None,
        typer.Option(help="Also ask a plain vote with as many calls. (default: yes)", show_default=False),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Keep the stack's logs and facts here; else all is removed.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove what deliberation is worth on seeded minds, or measure it on a real model.

    Without --dataset: every strategy on minds of known accuracy, correlation and bias, in this process; measured
    against closed forms, with the 3σ band. Exits with 1 when a figure lies outside. With --dataset: accuracy with its
    interval, cost per right answer, flips, unreadable answers, and the plain vote that costs as much.
    """
    if dataset is None:
        _dataset_needed(
            engine_url=tuple(engine_url or ()), url=url, model=model, role=role, num_agents=num_agents, rounds=rounds,
            limit=limit, timeout=timeout, concurrency=concurrency, baseline=baseline, data_dir=data_dir,
        )  # fmt: skip
        run(lambda: proof(strategy or (), runs or _RUNS, seed, as_json=as_json), as_json=as_json)
    if runs is not None:
        raise typer.BadParameter("--runs is of the proof; --limit takes only the first questions of a data set")
    if _OF_PROGRAMS in (strategy or ()):
        raise typer.BadParameter(f"{_OF_PROGRAMS} gives programs, and a data set asks for answers")
    where = replace(_where(url, engine_url or [], data_dir), api_key=api_key)
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
    run(lambda: _measured(where, plan, dataset, limit, as_json=as_json), as_json=as_json)


def _where(url: str | None, engine_urls: list[str], data_dir: Path | None) -> Where:
    if (url is None) == (not engine_urls):
        raise typer.BadParameter("name what is asked: --engine-url, repeatable, or the --url of a gateway that runs")
    if url is not None and data_dir is not None:
        raise typer.BadParameter("--data-dir is of a stack that is started here, not of the gateway at --url")
    return Where(url=url, engine_urls=tuple(engine_urls), data_dir=data_dir)


async def _measured(where: Where, plan: Plan, dataset: Path, limit: int | None, *, as_json: bool) -> Exit:
    # Read before anything is started, so that a bad row costs nothing.
    questions = read_dataset(dataset, limit)
    async with gateway_at(where) as gateway:
        await measure(gateway, plan, dataset.name, questions, as_json=as_json)
    return Exit.SUCCESS
