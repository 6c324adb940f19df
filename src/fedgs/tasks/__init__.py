"""What is learnt: the task (model, loss, metrics, what selection balances) and the built-in networks."""
