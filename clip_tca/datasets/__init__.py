"""Data sets: stored embeddings, and a seeded synthetic set."""
