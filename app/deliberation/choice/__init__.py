"""The comparison of candidates: ballots, aggregation, pairs, critiques and anonymity."""
