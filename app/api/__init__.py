"""The contract over HTTP: schemas, requests, responses, problems and cursors."""
