"""The simulated engine's HTTP interface, in the shapes of vLLM 0.32."""
