"""One file from its upload over a deliberation that names it to its deletion, with a kill at a chosen step."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from app.deliberation.facts import Completed
from app.deliberation.roles import AgentRunner
from app.inputs.reading import ReadInput
from app.log.stream_settings import INPUTS_STREAM
from tests.crash.audit import Audit
from tests.crash.clock import virtual_time
from tests.crash.points import Point, Points, Process
from tests.crash.runs import BODIES, WITHIN_S, Kill, answered, unrecorded
from tests.crash.stack import RETRY_S, Stack

CHUNK_BYTES = 64
# Shortened, so that the lives of files end within a run.
SWEEP_S, YOUNG_S, UNUSED_S = 3.0, 6.0, 12.0
GONE_AFTER_S = UNUSED_S + 2 * SWEEP_S
CONTENT = b"".join(b"line %d of the file\n" % number for number in range(10))
FORM = CONTENT.upper()[: 2 * CHUNK_BYTES + 1]
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = f"/files/file-{SHA256}"
BODY = {**BODIES["vote"], "evidence": [{"id": "e1", "title": "The file", "file": FILE.removeprefix("/files/")}]}


async def read_at_once(source: Path, name: str, declared: str | None, directory: Path) -> ReadInput:
    """In place of the child that reads a PDF, which takes real time: its text is another file than the upload."""
    form = directory / "form"
    await asyncio.to_thread(form.write_bytes, FORM)
    return ReadInput("application/pdf", "text", form, len(FORM), pages=1)


@dataclass
class InputRan:
    """The steps of a run, by the time that something was answered, and what was wrong."""

    reached: list[Point] = field(default_factory=list[Point])
    answered_at: dict[str, int] = field(default_factory=dict[str, int])
    faults: list[str] = field(default_factory=list[str])

    def step(self, number: int) -> str:
        point = self.reached[number - 1]
        return f"{number} ({point.process}: {point.step})"


@dataclass
class InputScript:
    """A client that uploads, asks and deletes; with `gives_up` it repeats nothing that a kill cut."""

    kill: Kill | None = None
    gives_up: bool = False
    agents: AgentRunner = "ray"

    def run(self) -> InputRan:
        with virtual_time() as loop:
            stack = Stack(loop, Points(), answered, agents=self.agents)
            return loop.run_until_complete(_Story(stack, self).told())


@dataclass
class _Story:
    stack: Stack
    script: InputScript
    ran: InputRan = field(default_factory=InputRan)
    in_flight: int = 0

    async def told(self) -> InputRan:
        stack, points = self.stack, self.stack.points
        if (kill := self.script.kill) is not None:
            (points.before if kill.side == "before" else points.after)[kill.number] = self._killing(kill)
        stack.start()
        accepted = await self._uploaded() and await self._accepted()
        ids = [record.subject.split(".")[2] for record in stack.server.log.matching("deliberations.*.*.accepted")]
        self.expect(len(ids) == 1 if accepted else len(ids) <= 1, f"accepted are {ids}")
        if ids:
            await self._deliberated(ids[0])
            await self._deleted(ids[0])
        else:
            await stack.wait(GONE_AFTER_S)
        left = [message.subject for message in stack.server.stream(INPUTS_STREAM).matching("inputs.>")]
        self.expect(not left, f"left behind: {left}")
        self.ran.reached = list(points.reached)
        await stack.stop()
        return self.ran

    def _killing(self, kill: Kill) -> Callable[[Process], None]:
        def strike(process: Process) -> None:
            self.in_flight += unrecorded(self.stack)
            process.die() if kill.victim == "process" else self.stack.die()

        return strike

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.ran.faults.append(otherwise)

    async def _asked(self, what: str, method: str, path: str, statuses: set[int], **options: object) -> bool:
        """Whether the client got one of the statuses; a client that gives up may get none."""
        response: httpx.Response | None = None
        while not self.stack.gateway.ready:
            await self.stack.wait(RETRY_S)
        if self.script.gives_up:
            response = await self.stack.request(method, path, **options)
        else:
            response = await self.stack.insist(method, path, **options)
        self.ran.answered_at[what] = len(self.stack.points.reached)
        if response is None or response.status_code in (429, 503):
            return False
        self.expect(response.status_code in statuses, f"{what}: {response.status_code} {response.text}")
        return response.status_code in statuses

    async def _uploaded(self) -> bool:
        if not await self._asked("upload", "POST", "/files", {201}, files={"file": ("brief.pdf", CONTENT)}):
            return False
        await self._whole("after its upload")
        return True

    async def _whole(self, when: str) -> None:
        for query, content in (("", CONTENT), ("?form=prompt", FORM)):
            response = await self.stack.insist("GET", f"{FILE}/content{query}")
            whole = response.status_code == 200 and response.content == content
            self.expect(whole, f"{when} GET {query} has {response.status_code} and {len(response.content)} bytes")

    async def _accepted(self) -> bool:
        headers = {"Idempotency-Key": "key"}
        return await self._asked("acceptance", "POST", "/deliberations", {200, 202}, json=BODY, headers=headers)

    async def _deliberated(self, id: str) -> None:
        quiet = await self.stack.quiet([id], WITHIN_S)
        audit = Audit(self.stack, id, self.in_flight)
        audit.expect(quiet, "it has not ended")
        audit.hold()
        audit.hold_calls()
        audit.expect(isinstance(audit.ends[0], Completed) if audit.ends else False, f"it ended as {audit.ends}")
        shown = f"\n\n{FORM.decode()}\n<<<end-of-peer-text "
        cut = [asked.call_id for asked in self.stack.engine.asked if asked.prompt.count(shown) != 1]
        audit.expect(not cut, f"prompts without the whole file: {cut}")
        self.ran.answered_at["end"] = len(self.stack.points.reached)
        self.ran.faults += audit.faults
        # Longer than a file lives that no deliberation names.
        await self.stack.wait(GONE_AFTER_S)
        await self._whole("after the end")

    async def _deleted(self, id: str) -> None:
        deleted = await self._asked("deletion", "DELETE", f"/deliberations/{id}", {204})
        if deleted:
            return
        marked = self.stack.stands(id, "deleted")
        await self.stack.wait(GONE_AFTER_S)
        if not marked:
            await self._whole("after a deletion that never began")
            self.expect((await self.stack.insist("DELETE", f"/deliberations/{id}")).status_code == 204, "not deleted")
