"""The voices of operations and data, and the neutral one that speaks when no persona is recognised."""

from serve_deployments.simulator.voices import ARCHITECT, DEVELOPER, TESTER, Fault, Voice

OPERATOR = Voice(
    name="operator",
    cues=("devops engineer", "deployment and reliability", "shipped, rolled back", "dies at night"),
    openings=(
        "“{subject}” is done when it can be rolled back at three in the morning by someone who did not write it.",
        "I look at {a} from the pager: what fails, who sees it, and what they can do.",
        "First the way back, then the way forward: “{subject}” ships behind a switch.",
        "The deployment of {a} decides how reliable it can be; so it comes before the code.",
    ),
    moves=(
        "**Build.** One image for {a}, pinned by digest; the same bytes in test and in production.",
        "**Ship.** Roll {a} out to one replica, watch it for ten minutes, then to the rest.",
        "**Back.** A change of {b} must be readable by the version before it; else there is no way back.",
        "**Observe.** Four signals for {a}: rate, errors, duration, saturation; an alert only where someone can act.",
        "**Limits.** Give {b} a time-out, a queue bound and a memory limit; an unbounded queue only hides the failure.",
        "**Death.** When {b} dies, {a} answers 503 with Retry-After and loses nothing that it has acknowledged.",
        "**Secrets.** {C} reads its key from a mounted file; nothing secret in the environment or the log.",
        "**Cost.** State what {a} costs per month at today's load and at ten times.",
    ),
    details=(
        "Readiness fails within 5 s of losing {b}; liveness does not look at {b} at all.",
        "The roll-out takes 12 minutes for 6 replicas; the roll-back takes 1.",
        "The error budget is 43 minutes a month; one bad release of {a} may use 10 of them.",
        "Drain first: {a} stops accepting, finishes within 30 s, then exits.",
    ),
    checks=(
        "Ready when a kill of any one process loses nothing that {a} has acknowledged.",
        "Ready when the runbook of {b} fits one screen and was followed once by somebody new.",
        "Ready when the dashboard shows the failure of {b} within a minute.",
    ),
    faults=(
        Fault(
            "There is no way back.",
            "The change of {b} cannot be read by the version before it.",
            "Write both forms for one release, then drop the old one.",
        ),
        Fault(
            "A time-out for {b} is missing.",
            "If {b} hangs, {a} hangs with it, as described.",
            "Give the call a deadline and say what {a} answers when it passes.",
        ),
        Fault(
            "No signal tells that {a} is failing.",
            "Logs are mentioned; no rate, error share or saturation is.",
            "Add the four signals and one alert with an action.",
        ),
        Fault(
            "The queue in front of {b} has no bound.",
            "Under overload it would grow until memory is gone.",
            "Bound it, and answer 429 with Retry-After when it is full.",
        ),
    ),
)

DATA = Voice(
    name="data",
    cues=("data engineer", "data quality", "build pipelines", "idempotent loads"),
    openings=(
        "“{subject}” stands on the quality of {a}; so I begin with its schema and its checks.",
        "I treat “{subject}” as a pipeline: {a} comes in, {b} goes out, and each step can be run again.",
        "Late and duplicate records of {a} will come; the design of “{subject}” has to expect them.",
        "Before anything is computed from {a}, three checks decide whether it may be used.",
    ),
    moves=(
        "**Schema.** {A} has a versioned schema; fields may be added, never given another meaning.",
        "**Idempotence.** Load {b} by key and day; running the step twice leaves the same rows.",
        "**Lateness.** Accept {a} up to three days late, then send it to a side table with its reason.",
        "**Duplicates.** Keep the first record of {a} per key, and count the others: their share is a signal.",
        "**Checks.** Stop before {b} when nulls exceed 1 %, when counts fall by half, or when a key is not unique.",
        "**Lineage.** Every row of {b} names the batch of {a} that it came from.",
        "**Backfill.** {B} can be rebuilt from raw {x} data for any day without touching the other days.",
        "**Types.** Times in UTC with their zone kept apart; money as integers; {c} never as free text.",
    ),
    details=(
        "With 5 million rows of {a} a day, one partition a day keeps a rebuild under 4 minutes.",
        "A null share above 1 % stops the load; 0.2 % is what was seen last month.",
        "The key is (source, day, number); 3 columns are enough to find any duplicate.",
        "Raw {x} data is kept for 90 days, so that each figure can be traced back.",
    ),
    checks=(
        "Good when yesterday's part of {b}, rebuilt from raw {x} data, equals what was published.",
        "Good when a bad batch of {a} is stopped before anybody reads it.",
        "Good when each figure in {b} can be traced to its rows of {a}.",
    ),
    faults=(
        Fault(
            "Running the step twice doubles {b}.",
            "Rows are appended without a key.",
            "Write by key and partition, so that a second run replaces the first.",
        ),
        Fault(
            "Late {x} data is lost.",
            "Only the data of the current day is read, as described.",
            "Read a window of three days and merge by key.",
        ),
        Fault(
            "No check stands between {a} and its readers.",
            "Bad rows would be published and found by a customer.",
            "Add a null, a count and a uniqueness check that stop the load.",
        ),
        Fault(
            "The meaning of {c} may change silently.",
            "There is no version of the schema.",
            "Version the schema, and refuse what does not match it.",
        ),
    ),
)

NEUTRAL = Voice(
    name="neutral",
    cues=(),
    openings=(
        "In short: “{subject}” is best done in small steps, each of which can be checked.",
        "I read “{subject}” as a question about {a} first, and about {b} second.",
        "The answer to “{subject}” depends most on {a}.",
        "Here is a plan for “{subject}” that can be followed without asking back.",
    ),
    moves=(
        "**Goal.** Say what is different when {a} is done, and for whom.",
        "**First step.** Take the part of {a} that everything else waits for.",
        "**Order.** {A} before {b}, because an error there costs the most later.",
        "**Choice.** Of two ways to {b}, take the one that is easier to undo.",
        "**Limits.** Leave out what {c} does not need; write down that it was left out.",
        "**People.** One person answers for {a}; others are asked, not told.",
        "**Check.** After each step compare {b} with what was expected, and stop if it differs.",
        "**Record.** Keep the reasons for {a} next to it, in three sentences.",
    ),
    details=(
        "The first step should take 2 days; if it takes 5, the plan is wrong.",
        "About 80 % of the value lies in {a}; {c} can wait.",
        "Two reviews of 30 minutes are enough for {b}.",
        "The riskiest assumption is that {b} is known; test it on day 1.",
    ),
    checks=(
        "It is right if someone else reaches the same view of {a} from the same facts.",
        "It is done when {b} can be shown, not only told.",
        "It holds as long as {c} does not change.",
    ),
    faults=(
        Fault(
            "A step is missing between {a} and {b}.",
            "The text goes from one to the other without saying how.",
            "Add the step, with what it needs and what it gives.",
        ),
        Fault(
            "A claim about {a} has no support.",
            "No example, figure or source is given for it.",
            "Give one example, or mark it as an assumption.",
        ),
        Fault(
            "{C} is promised and not delivered.",
            "It is named at the beginning and never taken up again.",
            "Take it up, or say that it is out of scope.",
        ),
    ),
)

VOICES: tuple[Voice, ...] = (DEVELOPER, TESTER, ARCHITECT, OPERATOR, DATA)
