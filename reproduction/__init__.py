"""The paper's experiments: every figure and table by one command, and a report. Not part of the installed package.

python -m reproduction table2 --femnist FILE
"""
