"""One training step and its engines: weight layout, per-device oracle, fused, graph and stacked engines, clients."""
