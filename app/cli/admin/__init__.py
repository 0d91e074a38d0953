"""Commands for operators: keys, streams, secrets, contexts, documents, and the simulator."""
