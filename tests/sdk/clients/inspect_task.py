"""An evaluation by Inspect, whose provider for compatible servers asks for chat completions."""

import json
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message

url, logs = sys.argv[1:]
task = Task(
    dataset=[Sample(input="Name a colour.", target="colour"), Sample(input="Name a shape.", target="shape")],
    solver=[system_message("Repeat the question."), generate()],
    scorer=includes(),
)
(log,) = eval(
    task,
    model="openai-api/gateway/single/DEV",
    model_base_url=f"{url}/v1",
    model_args={"api_key": "unused"},
    log_dir=logs,
    display="none",
    max_retries=0,
)
answered = [sample.output.completion for sample in log.samples or []]
print(
    json.dumps(
        {
            "status": log.status,
            "answered": answered,
            "usage": sum(u.total_tokens for u in log.stats.model_usage.values()),
        }
    )
)
