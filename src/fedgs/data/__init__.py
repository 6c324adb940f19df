"""Data: labelled images with owners, the federations built from them, and the device streams.

A :class:`DataSet` is what every loader gives; a ``Federation`` deals its owners out to factories; a stream
hands out a device's next mini-batch. Nothing here knows of models or algorithms.
"""

from fedgs.data.dataset import DataSet

__all__ = ["DataSet"]
