"""The report: one self-contained HTML page of records. Each module is one section of it, or what sections are made of.

Nothing here measures; every number comes from a record.
"""
