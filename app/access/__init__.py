"""Who may do what: keys, sessions, scopes, rate limits and origins."""
