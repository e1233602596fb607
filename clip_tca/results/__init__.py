"""Results of a run: the record's schema, tables, output formats, published numbers, gains, explanation."""
