"""What each role tends to say: sentences with places for the task's own words.

`{subject}` is the task in a few words; `{a}`, `{b}` and `{c}` are three things that it is about, with their article
(`{A}`, … at the beginning of a sentence), and `{x}`, `{y}` and `{z}` the same without it.
A voice is recognised by phrases of its persona, never by a role's name, since prompts do not tell names.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a reviewer of some voice may find, with what would mend it."""

    claim: str
    evidence: str
    fix: str


@dataclass(frozen=True, slots=True)
class Voice:
    """One role's way of speaking. `cues` are lower-case phrases of its persona."""

    name: str
    cues: tuple[str, ...]
    openings: tuple[str, ...]
    moves: tuple[str, ...]
    details: tuple[str, ...]
    checks: tuple[str, ...]
    faults: tuple[Fault, ...]


DEVELOPER = Voice(
    name="developer",
    cues=("software developer", "maintainable code", "clean, tested", "simplest design"),
    openings=(
        "Start with the smallest version of “{subject}” that can be tested, then grow it.",
        "I would write {a} as one pure function with a thin edge around it.",
        "The core of “{subject}” fits in one module; everything that can fail stays outside of it.",
        "First the interface of {a}, then the tests, then the shortest code that passes them.",
    ),
    moves=(
        "**Interface.** Give {a} one entry point with typed arguments, and return a value instead of changing state.",
        "**Errors.** Reject bad input of {b} at the edge with a named error; inside, assume it is valid.",
        "**Simplicity.** Use the standard library for {a}; add a dependency only when it removes more than it brings.",
        "**Naming.** Let the names follow the task: {a}, {b}, {c}; no abbreviations and no hidden flags.",
        "**State.** Pass {b} as an argument, so that a test needs no set-up.",
        "**Size.** Keep each function under a screen; split {a} from {b} where one changes without the other.",
        "**Docs.** State the contract of {a} in its docstring: shapes, units, errors.",
        "**Tests.** Cover the empty case, one item, many items, and the largest input of {b} that is allowed.",
    ),
    details=(
        "The limit belongs in one constant, for example `items_max = 1_000`, with its unit in the name.",
        "A property test over 200 random inputs finds the case that three examples miss.",
        "Type checking in strict mode catches the optional value in {b} before it runs.",
        "A call stays linear in the size of {b}; measured with 10,000 items it should take under 50 ms.",
    ),
    checks=(
        "Done when the tests fail for the right reason with each line of {a} removed in turn.",
        "Done when a reader can say what {a} does from its signature alone.",
        "Done when lint, types and tests pass and {b} has no branch without a test.",
    ),
    faults=(
        Fault(
            "The error path of {a} is not handled.",
            "It is said what happens when {a} succeeds, and nothing of what the caller sees when it does not.",
            "Name the error that {a} raises, and say who handles it.",
        ),
        Fault(
            "{A} and {b} are mixed in one place.",
            "Changing {b} would mean to touch the code of {a} too, as described.",
            "Split them: a pure function for {a}, and an edge that supplies {b}.",
        ),
        Fault(
            "The input of {a} is not bounded.",
            "No limit is given for {b}; a large input would be taken as it comes.",
            "State a limit with its unit, and reject what lies beyond it.",
        ),
        Fault(
            "A dependency is suggested without need.",
            "What is described for {c} can be done with the standard library.",
            "Drop the dependency, or say what it saves.",
        ),
    ),
)

TESTER = Voice(
    name="tester",
    cues=("quality engineer", "test strategy", "edge cases: what could break"),
    openings=(
        "Before the solution to “{subject}”, the question how we would notice that it is wrong.",
        "“{subject}” can break at its boundaries; I list them first and build the answer around them.",
        "The test strategy for {a} decides its shape: what cannot be observed cannot be trusted.",
        "I take the riskiest part of “{subject}” first: {a} together with {b}.",
    ),
    moves=(
        "**Boundaries.** Try {a} with nothing, one, the maximum, and one above the maximum.",
        "**Equivalence.** Group the inputs of {b} into classes; one test for each class, two at each border.",
        "**Failure.** Break {b} on purpose: a time-out, a partial write, a duplicate; state what must still hold.",
        "**Properties.** Applied twice, {a} gives what it gives once.",
        "**Levels.** Most tests of {a} are pure and fast; one contract test per neighbour; few run end to end.",
        "**Data.** Keep the cases of {b} in a table, so that a missing row is visible.",
        "**Order.** Run the tests in random order; a test of {c} that depends on another is a fault.",
        "**Regression.** Each fault found in {a} becomes a test before it is mended.",
    ),
    details=(
        "Not covered: behaviour of {b} under clock changes; I am 70 % sure that it does not matter here.",
        "With 12 classes and 2 borders each, 36 cases cover {a}; they run in under 2 s.",
        "A mutation of any comparison in {a} must turn at least 1 test red.",
        "The slowest test names its budget: 250 ms, measured, not guessed.",
    ),
    checks=(
        "Accept when every class of {b} has a passing test and one that fails without the change.",
        "Accept when a reviewer can name the single test that shows each risk of {a}.",
        "Accept when the suite was seen to fail with {a} removed.",
    ),
    faults=(
        Fault(
            "The boundary of {a} is not tested.",
            "No case has the maximum, or one above it.",
            "Add a test at the maximum and one just above it, with the expected outcome.",
        ),
        Fault(
            "It is not said how a failure of {b} would be seen.",
            "Only the path without failures is described.",
            "Name the test or the signal that turns red when {b} fails.",
        ),
        Fault(
            "Duplicates are not considered.",
            "The text assumes that each request to {a} arrives exactly once.",
            "State what happens the second time, and test it.",
        ),
        Fault(
            "The acceptance criterion cannot be checked.",
            "“Works well” for {c} is no observation.",
            "Replace it by a figure or by a case with an expected outcome.",
        ),
    ),
)

ARCHITECT = Voice(
    name="architect",
    cues=("software architect", "structure, scale", "scale and patterns", "boundaries and data flow"),
    openings=(
        "I decide “{subject}” by its boundaries: what owns {a}, and what only reads it.",
        "Two structures fit “{subject}”; I take the one that is easier to undo.",
        "The load on {a} and the rate of change of {b} differ by an order of magnitude, so they part here.",
        "“{subject}” is a question of data flow; once {a} has one owner the rest follows.",
    ),
    moves=(
        "**Boundary.** {A} and {b} meet in one interface with three operations; neither imports the other.",
        "**Flow.** Data moves one way: {a} writes facts, {b} reads them; nobody calls back.",
        "**Scale.** At ten times the load {a} shards by key, while {b} stays as it is.",
        "**Coupling.** {B} may be replaced without touching {a}; the price is one translation at the edge.",
        "**Consistency.** First write wins for {a}; readers of {c} accept to be a second behind.",
        "**Alternative.** A shared database for {a} and {b} is quicker to build and harder to leave; rejected.",
        "**Pattern.** A log of facts fits {a} better than a table of states, because its history is asked for.",
        "**Undo.** The decision about {b} can be taken back within a week, that about {a} cannot: so it comes last.",
    ),
    details=(
        "At 1,000 requests per second {a} needs about 3 nodes; the network, not the processor, is the limit.",
        "The interface between {a} and {b} has 3 operations and 2 errors; more would be a second responsibility.",
        "It costs one extra hop, about 0.5 ms, for each use of {b}.",
        "The risk with the highest price is a change of the key of {a}; it needs a plan on day 1.",
    ),
    checks=(
        "The structure holds if {b} can be replaced by a fake in every test of {a}.",
        "The structure holds if no part needs to know where {c} is stored.",
        "The decision is right as long as {a} changes less often than {b}.",
    ),
    faults=(
        Fault(
            "{A} has two owners.",
            "Both the part that takes {a} and the part that stores it may change it.",
            "Give {a} one owner; the other asks it.",
        ),
        Fault(
            "It is not said what happens at ten times the load.",
            "The design names no limit of {b} and no way to divide it.",
            "Name the first bottleneck and the key by which {b} is divided.",
        ),
        Fault(
            "The alternative is missing.",
            "One structure for {a} is presented as if there were no other.",
            "Name the second best and why it was not taken.",
        ),
        Fault(
            "{B} is coupled to {c} without need.",
            "A change of {c} would force a release of {b}, as described.",
            "Put an interface between them, or state why they change together.",
        ),
    ),
)
