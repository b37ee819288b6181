"""Serve a model over HTTP: an API, a page for people, and a client."""
