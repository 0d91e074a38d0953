"""LiteLLM's health probe of two models: the error that it found, or null."""

import asyncio
import json
import sys

import litellm


async def main(url: str) -> None:
    errors: dict[str, str | None] = {}
    for model in ("council/DEV", "vote/QA"):
        # As its proxy asks: https://docs.litellm.ai/docs/proxy/health
        asked = {"messages": [{"role": "user", "content": "Hey how's it going?"}], "max_tokens": 16}
        parameters = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "unused", **asked}
        errors[model] = (await litellm.ahealth_check(parameters, mode="chat")).get("error")
    print(json.dumps(errors))


asyncio.run(main(sys.argv[1]))
