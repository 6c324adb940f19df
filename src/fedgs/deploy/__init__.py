"""Deployment: devices, base stations and a top server as separate processes over a network (the paper, section IV).

    device ── grpc.aio stream, mTLS, every iteration ──▸ station ◂── RunRound, every T iterations ── top server

Messages: ``wire`` (devices), ``round_messages`` (rounds), ``tensors`` (weights as bytes). Identity: ``pki``,
``revocation``. Connections: ``transport``, ``connections``. A device: ``sources``, ``trainers``, ``torch_trainer``,
``agent``. A station: ``membership``, ``pace``, ``streams``, ``station``, ``screening``, ``round_state``, ``rounds``,
``lease``, ``station_process``. The top server: ``run_spec``, ``top``, ``top_state``, ``top_process``.
All: ``settings``, ``process``, ``logs``, ``metrics``; ``park`` starts all of it on one machine. Nothing here imports
the simulator.
"""
