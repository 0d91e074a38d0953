"""Authentication and authorization: keys, sessions, scopes, rate limits and origins."""
