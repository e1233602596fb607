"""Evaluation: protocols, methods by name, the runner, its record, and the published numbers beside it."""
