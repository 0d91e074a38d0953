"""Names and numbers that the warden, the zygote and its processes share."""

# The module name, and file name, of a program's text.
PROGRAM = "solution"

# The descriptors of a zygote, after standard input (the test's input), output and error.
ORDER, CONTROL, STATUS, RESULT, NOTES, LIFELINE = range(3, 9)
# Its events, on STATUS.
READY, STARTED, ENDED, EXITED = "ready", "started", "ended", "exited"
# The exit status of the zygote and its processes when they could not do their work.
BROKEN = 70

# The commands on CONTROL: call a function, or run the program as a script.
CALL, SCRIPT = b"call", b"script"
# A process writes LOADED on RESULT, then one of the other lines, and after it the value as JSON or the error's text.
LOADED, RETURNED, FINISHED, RAISED = b"loaded\n", b"returned\n", b"finished\n", b"raised\n"
