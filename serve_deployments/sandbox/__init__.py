"""The sandbox: runs a program against tests that are data, without trusting the program.

`checks.Sandbox` is the side of the replica. For each program it starts a warden (`warden`), a fresh interpreter without
environment or packages. Its child (`child`) confines itself (`confinement`: limits, `landlock`, two filters of
`seccomp`) and becomes the zygote (`zygote`), another fresh interpreter. The zygote forks a process for each test, which
runs the program. The warden compares (`verdict`) the value or output of that process with the expected one.

All modules but `checks` import the standard library alone.
"""
