"""The deployments in Ray Serve, and the simulated engine that can stand in for vLLM."""
