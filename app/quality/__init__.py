"""Measures the benefit of deliberation: simulated agents, closed forms, and the grading of real runs.

Only `deliberate bench quality` imports this package. Everything here is pure: no file, network, clock or unseeded
randomness. Reading data sets, starting a stack and printing belong to the command (`app.cli.bench`).
"""
