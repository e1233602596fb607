"""Embedding files: one module per format with its reader and its writer, listed in ``registry.py``."""
