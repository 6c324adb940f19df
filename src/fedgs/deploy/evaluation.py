"""Accuracy and loss of the global model on a held-out set."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgs.data import DataSet
from fedgs.tasks.cnn import as_input, build_model

_BATCH = 512


class HeldOut:
    """Tests weights on all samples of a data set."""

    def __init__(self, data: DataSet, model: str) -> None:
        self._data = data
        self._model = build_model(model, len(data.classes), data.images.shape[1:]).requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, weights: Mapping[str, Tensor]) -> tuple[float, float]:
        """Return accuracy and mean loss."""
        self._model.load_state_dict(dict(weights))
        right, loss = 0, 0.0
        for first in range(0, len(self._data), _BATCH):
            images = as_input(torch.from_numpy(self._data.images[first : first + _BATCH].copy()))
            labels = torch.from_numpy(self._data.labels[first : first + _BATCH].astype("int64"))
            logits = self._model(images)
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(cross_entropy(logits, labels, reduction="sum"))
        return right / len(self._data), loss / len(self._data)
