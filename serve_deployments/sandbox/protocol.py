"""Names and numbers that the warden, the zygote and its processes share."""

# The module names, and file names, of the two texts.
PROGRAM, TEST = "solution", "test"

# The descriptors of a zygote.
ORDER, CONTROL, STATUS, TESTS, VERDICT, NOTES, LIFELINE = range(3, 10)
# Its events, on STATUS.
READY, PROCESSES, ENDED, EXITS = "ready", "processes", "ended", "exits"
# The exit status of the zygote and its processes when they could not do their work.
BROKEN = 70

# A line on VERDICT reports that the program has loaded. The last line is the verdict as JSON: the kind and the reason.
LOADED = b"loaded"
PASSED, FAILED, VOID, GONE = "passed", "failed", "void", "gone"
