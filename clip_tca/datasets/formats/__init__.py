"""Embedding files: read and written in blocks of rows; the formats are listed in ``registry.py``."""
