"""The simulator: FedGS (Algorithm 1) at full speed in one process, or with its factories shared out over several.

    selection plan ─→ engine (T one-step iterations a factory) ─→ external synchronisation ─→ evaluation
    (who trains on what; runs ahead)   (weights in, stations' weights out)

``selection_plan`` knows labels and no model, ``per_device`` and ``fused`` know the model and no selection,
``simulator`` joins them, ``runs`` keeps what comes out in a folder. All weights of a model lie in one flat
vector (``layout``), so stations, momentum, averages and checkpoints are plain arrays.

Baselines have rounds of their own (``flat``): ``participants`` plans them, ``local_training`` trains all devices
of a round together, ``one_by_one`` is its oracle, ``pretraining`` the run before a run.
"""
