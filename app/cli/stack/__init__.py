"""The stack that `up` and `demo` run: processes, supervision, probes and stores."""
