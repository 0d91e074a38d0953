"""`deliberate bench quality`: puts questions with known answers to a gateway, and grades each strategy."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console
from rich.text import Text

from app.api.installation import RoleList
from app.api.schemas import Deliberation, StrategyList
from app.api.suggestions import did_you_mean
from app.catalog.entries import BENCH
from app.cli.bench.dataset import read_dataset
from app.cli.bench.grading import GradedAnswer, StrategyResult, grade, result_document, result_lines, summed_up
from app.cli.bench.questions import Question
from app.cli.bench.rows import GradedRows
from app.cli.client import GatewayClient, JsonObject, parsed
from app.cli.exits import EXIT_HELP, CommandError, Exit, naming_options, print_json, run
from app.cli.options import ApiKeyOption, JsonOption, UrlOption
from app.cli.render.lanes import is_simulated
from app.cli.render.lines import heartbeats, progress_reports
from app.cli.render.progress import Checklist, ProgressEvent
from app.cli.stack.checks import status_of
from app.cli.stack.layout import StackOptions, mask_credentials
from app.cli.stack.up import EngineOption, running_stack
from app.cli.target import gateway_client
from app.cli.watch import until_ended
from app.deliberation.roles import engine_endpoint
from app.deliberation.strategies import STRATEGIES

bench_cli = typer.Typer()

SIMULATED_NOTICE = "SIMULATED: a simulator replaces the model; only calls, tokens and times mean anything."
_OPTIONS = {
    "/num_agents": "--agents",
    "/agents": "--agents",
    "/agents/0/role": "--role",
    "/agents/0/model": "--model",
    "/role": "--role",
    "/rounds": "--rounds",
    "/seed": "--seed",
    "/constraints/timeout_seconds": "--timeout",
}
_DEFAULT_STRATEGIES = ("single", "vote", "best_of_n", "council")
# `independent` has no verdict, and that of `execute` is a program.
_WITHOUT_ANSWER = ("independent", "execute")
_VOTE = "vote"
# These need no plain vote beside them: they are the baselines.
_BASELINES = (_VOTE, "single")
_AGENTS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    strategies: tuple[str, ...]
    agents: int
    role: str
    model: str | None
    rounds: int | None
    timeout_s: int
    seed: int
    concurrency: int
    baseline: bool


@asynccontextmanager
async def gateway_before(engine_urls: tuple[str, ...], data_dir: Path | None) -> AsyncGenerator[GatewayClient]:
    """The gateway of a stack that is started in front of these engines; stderr shows its progress."""
    with TemporaryDirectory(prefix="deliberate-bench-", ignore_cleanup_errors=True) as temporary:
        options = StackOptions(port=0, nats_port=0, data_dir=data_dir or Path(temporary), engine_urls=engine_urls)
        errors = Console(stderr=True, highlight=False, soft_wrap=True)
        checklist = Checklist(errors)

        def print_line(line: str) -> None:
            # A terminal shows a moving line.
            if not errors.is_terminal:
                errors.print(line, markup=False)

        for url in engine_urls:
            # Behind an unreachable engine every question would wait for its deadline.
            if await status_of(engine_endpoint(url, "/models")) is None:
                detail = f"no engine answers at {mask_credentials(url)}"
                remedy = "is it running, and is that its URL?"
                raise CommandError(Exit.UNREACHABLE, "engine_unreachable", detail, remedy=remedy)
        async with AsyncExitStack() as started:
            waits_for = "still starting: {}".format
            async with heartbeats(lambda: waits_for(", ".join(checklist.starting.values())), print_line) as spoke:

                def report(event: ProgressEvent) -> None:
                    checklist(event)
                    spoke.set()

                stack = await started.enter_async_context(running_stack(options, report))
            yield await started.enter_async_context(GatewayClient(stack.url))


def request_body(plan: Plan, strategy: str, agents: int, question: Question, index: int, own: JsonObject) -> JsonObject:
    """The request for one question; `own` are the strategy's parameters. Every strategy gets the same task."""
    council: JsonObject = {"role": plan.role, "num_agents": agents}
    if plan.model is not None:
        council = {"agents": [{"role": plan.role, "count": agents, "model": plan.model}]}
    return {
        **question.asked,
        **council,
        "strategy": strategy,
        "parameters": own,
        **({} if plan.rounds is None else {"rounds": plan.rounds}),
        "constraints": {**question.asked.get("constraints", {}), "timeout_seconds": plan.timeout_s},
        "seed": plan.seed + index,
        "metadata": dict([BENCH]),
    }


def own_parameters(known: StrategyList, strategy: str, question: Question) -> JsonObject:
    """The parameters by which a strategy that counts answers reads them as the question's are read."""
    (definition,) = (offered for offered in known.items if offered.name == strategy)
    fields = definition.parameters.get("properties", {})
    return {name: value for name, value in question.reading.items() if name in fields}


@dataclass(slots=True)
class _Bench:
    gateway: GatewayClient
    plan: Plan
    questions: Sequence[Question]
    known: StrategyList
    models: Sequence[str]
    rows: GradedRows
    report: Callable[[str], None]

    async def run(self, strategy: str, agents: int, more: JsonObject | None = None) -> StrategyResult:
        """All questions with one strategy, `concurrency` at a time; `more` are further parameters of it."""
        free = asyncio.Semaphore(self.plan.concurrency)
        done = 0

        def report(wait: str = "") -> None:
            self.report(f"{strategy} of {agents}: {done} of {len(self.questions)}  {wait.strip()}".rstrip())

        async def one(index: int, question: Question) -> GradedAnswer:
            nonlocal done
            own = own_parameters(self.known, strategy, question) | (more or {})
            body = request_body(self.plan, strategy, agents, question, index, own)
            graded = self.rows.graded(self.models, body)
            if graded is None:
                async with free:
                    graded = grade(question, parsed(Deliberation, await self._asked(body, report)))
                self.rows.add(self.models, body, graded)
            done += 1
            report()
            return graded

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(*numbered)) for numbered in enumerate(self.questions)]
        except* CommandError as failures:
            raise failures.exceptions[0] from None
        return summed_up(strategy, agents, [task.result() for task in tasks])

    async def _asked(self, body: JsonObject, report: Callable[[str], None]) -> JsonObject:
        """The ended deliberation. A cancellation of this task cancels it too, as it would slow the next run."""
        submission = asyncio.ensure_future(self.gateway.submit(body, uuid4().hex))
        try:
            with naming_options(_OPTIONS):
                accepted = await asyncio.shield(submission)
            return await until_ended(self.gateway, str(accepted["id"]), report)
        except asyncio.CancelledError:
            with suppress(CommandError):
                accepted = await submission
                await self.gateway.request("POST", f"/deliberations/{accepted['id']}/cancel")
            raise

    async def matched_vote(self, result: StrategyResult) -> StrategyResult | None:
        """The plain vote with as many calls as the strategy made on average; None for a baseline."""
        if not self.plan.baseline or result.strategy in _BASELINES:
            return None
        votes = min(_AGENTS_MAX, max(1, round(result.calls / result.questions)))
        return await self.run(_VOTE, votes, {"stop": "none"})


async def measure(
    gateway: GatewayClient, plan: Plan, dataset: str, questions: Sequence[Question], rows: GradedRows, *, as_json: bool
) -> None:
    """Run every question with every strategy and print each result as soon as it is known; JSON at the end.

    Questions that are among the rows are not asked again.
    """
    console = Console(highlight=False, soft_wrap=True)
    documents: list[JsonObject] = []
    known = parsed(StrategyList, await gateway.read("/strategies"))
    live = [role.live for role in parsed(RoleList, await gateway.read("/roles")).items if role.name == plan.role]
    simulated = is_simulated(plan.model) or any(serving is not None and serving.simulated for serving in live)
    served = sorted({model for serving in live if serving is not None for model in serving.models})
    if not as_json:
        if simulated:
            console.print(Text(SIMULATED_NOTICE, "yellow"))
        count = "1 question" if len(questions) == 1 else f"{len(questions)} questions"
        console.print(Text(f"{count} of {dataset}\n"))
    async with progress_reports("the first questions are asked") as report:
        bench = _Bench(gateway, plan, questions, known, served, rows, report)
        for strategy in plan.strategies:
            result = await bench.run(strategy, plan.agents)
            vote = await bench.matched_vote(result)
            documents.append(result_document(result, vote))
            if not as_json:
                for line in result_lines(result, vote):
                    console.print(line)
    if as_json:
        print_json({"simulated": simulated, "dataset": dataset, "seed": plan.seed, "strategies": documents})


def _checked_strategies(values: list[str] | None) -> list[str]:
    known = [name for name in STRATEGIES if name not in _WITHOUT_ANSWER]
    if (unfit := next((value for value in values or [] if value not in known), None)) is not None:
        meant = did_you_mean(unfit, known)
        raise typer.BadParameter(f"{unfit!r} gives no answer to grade. {meant}Choose one of {', '.join(known)}")
    return list(dict.fromkeys(values or _DEFAULT_STRATEGIES))


StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        callback=_checked_strategies,
        help=f"Only this strategy; repeatable. (default: {', '.join(_DEFAULT_STRATEGIES)})",
    ),
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


@bench_cli.command(epilog=EXIT_HELP)
def quality(
    dataset: Annotated[
        str, typer.Option(metavar="FILE.jsonl", help="Questions with answers, or bfcl:CATEGORY of Berkeley's.")
    ],
    strategy: StrategyOption = None,
    engine_url: EngineOption = None,
    url: UrlOption = None,
    api_key: ApiKeyOption = None,
    model: Annotated[str | None, typer.Option(help="Model of every agent. (default: the role's)")] = None,
    role: Annotated[str, typer.Option(help="Role of every agent.")] = "DEV",
    agents: Annotated[int, typer.Option(min=1, max=_AGENTS_MAX, help="Agents of each council.")] = 3,
    rounds: Annotated[int | None, typer.Option(min=0, max=5, help="Rounds, for strategies that have them.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of questions to use. (default: all)")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**40, help="Seed of the first deliberation.")] = 1,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Deadline of each deliberation.")] = 300,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Deliberations at a time.")] = 4,
    baseline: Annotated[bool, typer.Option(help="Also run a plain vote with as many calls.")] = True,
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            dir_okay=False,
            help="Write each graded question there at once; the same command asks those that lack.",
        ),
    ] = None,
    data_dir: DirectoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the benefit of deliberation on your questions and engines.

    Reports accuracy with its interval, cost per right answer, flips, unreadable answers, and the plain vote with as
    many calls. Asks the running gateway, or one that it starts before --engine-url.
    """
    # The first complaint, and before anything starts: an invalid row costs nothing.
    questions, kept = read_dataset(dataset, limit), GradedRows(rows)
    if url is not None and engine_url:
        raise typer.BadParameter("give either --engine-url, repeatable, or the --url of a running gateway")
    if url is not None and data_dir is not None:
        raise typer.BadParameter("give --url or --data-dir, not both: each names a stack")
    engines = tuple(engine_url or ())
    plan = Plan(
        strategies=tuple(strategy or _DEFAULT_STRATEGIES),
        agents=agents,
        role=role,
        model=model,
        rounds=rounds,
        timeout_s=timeout,
        seed=seed,
        concurrency=concurrency,
        baseline=baseline,
    )

    async def main() -> Exit:
        source = gateway_before(engines, data_dir) if engines else gateway_client(url, data_dir, api_key)
        async with source as gateway:
            await measure(gateway, plan, Path(dataset).name, questions, kept, as_json=as_json)
        return Exit.SUCCESS

    run(main, as_json=as_json)
