"""Webhooks: a deliberation's facts, told to a URL that its client named, signed as Standard Webhooks has it.

`python -m app.webhooks` is the sender, a process of its own: it alone reaches out to hosts that clients name, and it
alone holds the secrets that sign. It keeps nothing but what stands in the log, so any number of them share the work and
any of them may die. What is promised, and how a receiver checks what it gets: docs/webhooks.md.
"""
