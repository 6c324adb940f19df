"""Experiments: one file per figure or table of the paper; settings in, numbers and pictures out."""
