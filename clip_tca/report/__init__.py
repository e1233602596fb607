"""The report: one self-contained HTML page of records. Each module is a section of it, or what sections are made of.

Nothing is measured here; every number comes from a record.
"""
