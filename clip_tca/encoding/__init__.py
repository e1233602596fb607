"""f: from images and texts to embeddings, and the store that caches them."""
