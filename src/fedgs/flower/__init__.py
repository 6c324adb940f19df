"""Flower as the transport of rounds, for sites across the Internet: a factory is one SuperNode.

    devices ── gRPC ──▸ station ◂── Unix socket ── ClientApp ◂ SuperNode ── HTTPS ──▸ SuperLink ▸ ServerApp

The paper calls a factory a super node, one homogeneous client; here that is meant literally. Flower carries one
message a round and site; what happens at every iteration stays inside the factory (:mod:`fedgs.deploy`).

A file an idea: ``messages`` (a round as a Flower message), ``client`` (the ClientApp, a thin bridge that starts anew
for each message and imports no torch), ``transport`` (SuperNodes as stations), ``strategies`` (the uniform mean, and
any strategy of Flower as a server rule), ``server`` and ``options`` (the ServerApp and its run config), ``park`` (all
of it on one machine). Needs ``pip install 'fedgs[flower]'``.
"""
