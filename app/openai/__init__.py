"""Routes for OpenAI clients: a council behaves as a model."""
