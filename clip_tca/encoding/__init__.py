"""f: from pictures to embeddings, and the store that keeps them."""
