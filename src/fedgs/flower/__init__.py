"""Flower as the transport of rounds, for sites across the Internet: a factory is one SuperNode.

    devices ── gRPC ──▸ station ◂── Unix socket ── ClientApp ◂ SuperNode ── HTTPS ──▸ SuperLink ▸ ServerApp

The paper calls a factory a super node, one homogeneous client; here that is meant literally. Flower carries one
message a round and site; what happens at every iteration stays inside the factory (:mod:`fedgs.deploy`).

``client`` is the ClientApp, a thin bridge that starts anew for each message and imports no torch, and a round as a
Flower message; ``server`` the ServerApp, its run config, and SuperNodes as stations; ``strategies`` the uniform mean,
and any strategy of Flower as a server rule; ``park`` all of it on one machine. Needs ``pip install 'fedgs[flower]'``.
"""
