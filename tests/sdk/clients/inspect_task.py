"""An evaluation by Inspect."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message


@task
def colours() -> Task:
    return Task(
        dataset=[Sample(input="Name a colour.", target="colour"), Sample(input="Name a shape.", target="shape")],
        solver=[system_message("Repeat the question."), generate()],
        scorer=includes(),
    )
