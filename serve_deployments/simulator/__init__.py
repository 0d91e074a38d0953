"""An OpenAI-compatible stand-in for vLLM without weights: seeded, with scripted latency and faults.

Run it with `python -m serve_deployments.simulator --help`. Its shapes, statuses and metric names are those of
vLLM 0.32; its words are made up, and its model name always says so.
"""
