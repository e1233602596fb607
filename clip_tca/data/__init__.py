"""Data sets: images in folders, arrays and on the hub, corruptions, embeddings, the bundled demo, a synthetic set."""
