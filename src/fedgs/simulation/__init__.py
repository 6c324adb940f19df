"""The simulator: FedGS (Algorithm 1) or a baseline in one process, or with its factories shared out over several.

    plan ─→ rounds (the algorithm trains) ─→ evaluation ─→ state ─→ callbacks (folder, display, your own)
    (who trains on what; runs ahead)

``selection_plan`` and ``participants`` know labels and no model; ``simulator`` joins plans, algorithm and evaluation to
a function from state to state. ``run`` executes it with callbacks, ``folder`` writes it down, ``history`` is what a run
returns, ``launch`` is the command line's run with its baseline.
"""
