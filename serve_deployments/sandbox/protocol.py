"""What the warden, the zygote and its processes call things when they talk to each other."""

# The module names, and file names, of the two texts.
PROGRAM, TEST = "solution", "test"

# The descriptors of a zygote.
ORDER, CONTROL, STATUS, TESTS, VERDICT, NOTES, LIFELINE = range(3, 10)
# Its events, on STATUS.
READY, PROCESSES, ENDED, EXITS = "ready", "processes", "ended", "exits"
# Its exit status, and that of its processes, when they could not do what they are for.
BROKEN = 70

# A line on VERDICT says that the program has loaded; the last one is the verdict, as JSON: the kind and the reason.
LOADED = b"loaded"
PASSED, FAILED, VOID, GONE = "passed", "failed", "void", "gone"
