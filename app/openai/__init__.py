"""The façade for OpenAI's clients: a council as a model."""
