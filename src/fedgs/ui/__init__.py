"""The live page: runs and parks in a browser, read-only.

    sources.py   what is looked at: the folder of a run, or of a park, as plain data that grows
    app.py       the page and its stream of events (Starlette)
    page/        HTML, style and script; uPlot draws the curves and is part of the package, so the page works offline

Nothing is read while nobody looks: files are followed for as long as a browser is connected.
"""
