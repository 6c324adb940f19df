"""For real: devices, base stations and a top server as separate processes over a network (the paper, section IV).

    device ── grpc.aio stream, mTLS, every iteration ──▸ station ◂── RunRound, every T iterations ── top

A file an idea: ``wire`` (messages and their checks), ``tensors`` (weights as bytes), ``identity``, ``pki`` and ``tls``
(who is who), ``sources`` and ``trainers`` (what a device has and does), ``agent`` (the device), ``membership``,
``team``, ``station`` and ``control`` (the station), ``carrier``, ``top`` (the top server), ``park`` (all of it on one
machine), ``metrics`` and ``logs``. Nothing here knows of the simulator.
"""
