"""Google's ADK asks a council as a remote agent of A2A, twice in one session."""

import asyncio
import json
import sys

from google.adk.agents.remote_a2a_agent import AGENT_CARD_WELL_KNOWN_PATH, RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types


async def main(url: str) -> None:
    agent = RemoteA2aAgent(name="council", agent_card=f"{url}{AGENT_CARD_WELL_KNOWN_PATH}")
    runner = InMemoryRunner(agent=agent, app_name="asking")
    session = await runner.session_service.create_session(app_name="asking", user_id="someone")
    answers: list[str] = []
    for text in ("Name a colour.", "Name another one."):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        events = runner.run_async(user_id="someone", session_id=session.id, new_message=message)
        errors: list[str] = []
        said: list[str] = []
        async for event in events:
            errors += [event.error_message] if event.error_message else []
            for part in (event.content.parts or []) if event.content else []:
                said.append(part.text or "")
        # A council may have dissent after its answer.
        answers.append("\n".join(said))
        assert not errors, errors
    print(json.dumps(answers))


asyncio.run(main(sys.argv[1]))
