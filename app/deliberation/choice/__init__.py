"""How candidates are compared: ballots, aggregation, pairs, critiques, stopping rules and anonymity."""
