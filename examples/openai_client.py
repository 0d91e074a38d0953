"""Run a deliberation with OpenAI's client, as if the council were a model.

    python examples/openai_client.py "Name three risks of a big rewrite." --model council/DEV

The environment gives DELIBERATE_URL, and DELIBERATE_API_KEY where the gateway asks for keys. Needs only openai.
"""

import argparse
import os
import sys

import openai


def models(client: openai.OpenAI) -> list[str]:
    """Every strategy with every role, as `<strategy>/<ROLE>`."""
    return [model.id for model in client.models.list()]


def deliberate(client: openai.OpenAI, model: str, task: str, agents: int) -> openai.types.CompletionUsage | None:
    """Submit a task, print the answer as it streams, and return the usage of all agents."""
    usage = None
    answer = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": task}],
        stream=True,
        stream_options={"include_usage": True},
        # Fields that OpenAI's API does not have.
        extra_body={"deliberation": {"num_agents": agents}},
    )
    print(f"deliberate watch {answer.headers['X-Deliberation-Id']}", file=sys.stderr)
    for chunk in answer.parse():
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        usage = chunk.usage or usage
    print()
    return usage


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="Name three risks of a big rewrite, and what to do about each.")
    parser.add_argument("--url", default=os.environ.get("DELIBERATE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--model", default="council/DEV")
    parser.add_argument("--agents", type=int, default=3)
    asked = parser.parse_args()
    # OpenAI's client demands a key; without keys the gateway ignores it.
    key = os.environ.get("DELIBERATE_API_KEY") or "unused"
    with openai.OpenAI(base_url=f"{asked.url}/v1", api_key=key) as client:
        try:
            usage = deliberate(client, asked.model, asked.task, asked.agents)
        except openai.NotFoundError as error:
            print(f"{error.message}\nmodels: {', '.join(models(client))}", file=sys.stderr)
            return 2
        except openai.APIError as error:
            print(f"{error.code}: {error.message}", file=sys.stderr)
            return 1
    if usage is not None:
        print(f"\n{usage.prompt_tokens} prompt and {usage.completion_tokens} completion tokens", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
