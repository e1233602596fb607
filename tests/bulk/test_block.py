"""A block of rows takes bounded memory, however long the rows are."""

from __future__ import annotations

from clip_tca.bulk.block import ROWS, VALUES, block_rows


def test_blocks_of_long_rows_are_short():
    assert block_rows(512) == block_rows(2048) == ROWS
    assert block_rows(40_000) * 40_000 <= VALUES
    assert block_rows(2 * VALUES) == 1
