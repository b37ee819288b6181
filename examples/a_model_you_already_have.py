"""Certified recourse for a torch network, and for a logistic regression, that were trained elsewhere.

Run: python examples/a_model_you_already_have.py
"""

from __future__ import annotations

import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import veritracer as vt


def train(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Any training will do: here a few hundred steps of Adam."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(module.parameters(), 1e-2, weight_decay=1e-3)
    for _ in range(300):
        loss = nn.functional.binary_cross_entropy_with_logits(module(x)[:, 0], y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module


def main() -> None:
    """Explain a network and a logistic regression."""
    data = vt.datasets.load("breast_cancer")
    split = data.split()
    encoding = vt.Encoding.fit(data.schema, split.X_train)  # the model sees rows of this encoding
    x, labels = encoding.encode(split.X_train), data.schema.labels(split.y_train)
    module = train(x.float(), torch.from_numpy(labels).float())
    linear = LogisticRegression().fit(x.numpy(), labels)
    rows = split.X_test.clip(split.X_train.min(), split.X_train.max(), axis=1)
    for name, model in (("network", module), ("logistic regression", linear)):
        recourse = vt.Recourse(model, data.schema, encoding, rows=split.X_train, kappa=0.05).explain(rows)
        print(f"{name}: {recourse}")
        who = int(recourse.valid.argmax())
        print(f"  {recourse.sentence(who)}")


if __name__ == "__main__":
    main()
