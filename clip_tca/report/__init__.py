"""The report: records as one self-contained HTML page, from the Jinja2 templates in ``templates/``.

Nothing is measured here; every number comes from a record.
"""
