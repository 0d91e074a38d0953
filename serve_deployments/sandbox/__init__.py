"""The sandbox: runs a program against tests without trusting either.

`checks.Sandbox` is the side of the replica. For each program it starts a warden (`warden`), a fresh interpreter without
environment or packages. Its child (`child`) confines itself (`confinement`: limits, `landlock`, two filters of
`seccomp`) and becomes the zygote (`zygote`), another fresh interpreter. The zygote forks two processes for each test:
one runs the program (`program`), the other the test (`trial`). They exchange values (`values`) by calls (`peer`).

All modules but `checks` import the standard library alone.
"""
