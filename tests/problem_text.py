"""What a problem document says twice."""

from app.api.schemas import Problem


def repetitions(problem: Problem) -> list[str]:
    """The sentences and pointers that stand twice in the problem of an invalid request; other problems are not read.

    `detail` is the first fault, for clients that show it alone; the other faults stand in `errors` only. A pointer may
    stand before several faults of its field, which differ.
    """
    if problem.status != 422:
        return []
    faults = problem.errors
    first = f"{faults[0].pointer or 'The body'}: {faults[0].detail.rstrip('.')}. {faults[0].remedy}" if faults else ""
    rest = problem.detail.removeprefix(first)
    repeated = [problem.detail] if rest == problem.detail and faults else []
    repeated += [fault.detail for fault in faults if fault.detail.rstrip(".") in rest]
    repeated += [fault.pointer for fault in faults if fault.pointer.startswith("/") and fault.pointer in rest]
    repeated += [fault.pointer for fault in faults if fault.pointer.startswith("/") and fault.pointer in fault.detail]
    repeated += [fault.detail for fault in faults if fault.detail.rstrip(".") in fault.remedy]
    repeated += [problem.detail] if problem.title.rstrip(".") in problem.detail else []
    named = [(fault.pointer, fault.detail) for fault in faults]
    return repeated + [str(pair) for pair in sorted(set(named)) if named.count(pair) > 1]
