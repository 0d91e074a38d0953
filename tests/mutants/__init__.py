"""Each guard of the promises is taken away in turn, and a named test must fail: `make mutants`."""
