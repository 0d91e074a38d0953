"""The sandbox: runs a program against tests without trusting either.

`checks.Sandbox` is the side of the replica. For each program it starts a warden (`warden`), a fresh interpreter without
environment or packages, which forks a child for each test. A child confines itself (`confinement`: resource limits, no
new privileges, no capabilities, `landlock`, two filters of `seccomp`), then runs the program and the test (`trial`).
Where one of these means is missing, nothing is run.

The modules that run in the warden and its children import the standard library alone.
"""
