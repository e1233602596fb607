"""Data sets: pictures in folders and on the hub, stored embeddings, the bundled demo, a synthetic set."""
