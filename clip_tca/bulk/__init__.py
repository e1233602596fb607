"""Embeddings that people keep: files of every usual format, folders of shards, streams; read and written in blocks.

Nothing here is ever held whole: a block is :data:`clip_tca.bulk.block.ROWS` rows, whatever the size of the file.
"""
