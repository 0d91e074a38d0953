"""An answer that the bench has graded."""

from app.cli.bench.grading import GradedAnswer

GRADED = GradedAnswer(
    id="d1",
    status="completed",
    right=True,
    majority_right=True,
    first_right=True,
    answers=4,
    readable=4,
    calls=6,
    tokens=600,
    seconds=2.0,
    degraded=False,
)
