"""Data sets: images in folders and on the hub, stored embeddings, the bundled demo, a synthetic set."""
