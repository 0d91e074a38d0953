"""The strategies against theory: simulated agents, closed forms, and what each rule of aggregation is worth."""
