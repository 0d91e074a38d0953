"""What deliberation is worth, measured: seeded minds with known virtues, closed forms, and the accounts of real runs.

A room of its own beside `app.deliberation`, because nothing here takes part in deliberating: no coordinator, agent or
gateway imports it; only `deliberate bench quality` does. It stands above the core and drives the very strategies that
the core registers. Everything here is a function of its arguments: no file, network, clock or unseeded chance. Reading
a data set, starting a stack and printing are the command's work (`app.cli.bench`).
"""
