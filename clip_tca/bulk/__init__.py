"""Embeddings larger than memory: files and folders of shards, read, adapted and written in blocks.

No file is ever held whole: a block has at most :data:`clip_tca.data.shards.ROWS` rows.
"""
