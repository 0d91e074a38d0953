"""What a problem document says twice."""

from app.api.schemas import Problem


def repetitions(problem: Problem) -> list[str]:
    """The sentences and pointers that stand twice in the problem of an invalid request; other problems are not read.

    A pointer may stand before several faults of its field, which differ.
    """
    if problem.status != 422:
        return []
    faults = problem.errors
    found = [each.detail for each in faults if each.detail.rstrip(".") in problem.detail]
    found += [each.pointer for each in faults if each.pointer.startswith("/") and each.pointer in problem.detail]
    found += [each.pointer for each in faults if each.pointer.startswith("/") and each.pointer in each.detail]
    found += [each.detail for each in faults if each.detail.rstrip(".") in each.remedy]
    found += [problem.detail] if problem.title.rstrip(".") in problem.detail else []
    named = [(each.pointer, each.detail) for each in faults]
    return found + [str(each) for each in sorted(set(named)) if named.count(each) > 1]
