"""The report: sections made of results, as Markdown and as a page."""
