"""The sections of the report, one file each: results in, tables and figures out.

A section is a function from :class:`ReportInputs` to the values that the template ``report.md.j2`` shows; it is empty
where nothing of it has been run. What the numbers mean, people write in ``remarks.toml``.
"""
