"""The sections of the report of a reproduction, one file each: results in, Markdown out, every sentence from numbers.

A section is a function ``write(material) -> list of blocks``; it is empty where nothing of it has been run.
"""
