"""The generated documents: OpenAPI, AsyncAPI and their examples."""
