"""A newcomer's trial: models are trained in PyTorch and exported by the script that `afterimage init pytorch` prints.

    python golden/trial/make.py [FOLDER]     (needs torch and numpy)

Without a folder, the recorded trial beside this file is made anew. Handwritten digits of 8 x 8 pixels that the
project ships are the data. What `afterimage audit` must say of each is in crates/cli/tests/own_model.rs.
"""

import gzip
import pathlib
import shutil
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "crates/cli/assets"))
from afterimage_export import export  # noqa: E402

MEAN, STD = 0.3, 0.38


def digits():
    """Pixels in 0 to 1, and labels."""
    assets = ROOT / "crates/audit/assets"
    with gzip.open(assets / "digits-8x8-images.idx.gz") as file:
        x = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 1, 8, 8) / np.float32(16)
    with gzip.open(assets / "digits-8x8-labels.idx.gz") as file:
        y = np.frombuffer(file.read()[8:], np.uint8).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y)


def normalised(x):
    return (x - MEAN) / STD


def save(path, x, y):
    np.savez_compressed(path, x=x.numpy(), y=y.numpy())


def train(model, x, y, steps, lr=1e-3):
    optimiser = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def gradient(model, x, y):
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


class Lenet(nn.Module):
    """Convolutions with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 24, 3, padding=1, stride=2), nn.BatchNorm2d(24)
        self.fc = nn.Linear(24 * 4 * 4, 10)

    def forward(self, x):
        x = torch.sigmoid(self.bn1(self.conv1(x)))
        x = torch.sigmoid(self.bn2(self.conv2(x)))
        return self.fc(torch.flatten(x, 1))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for old in ["leaky", "noisy", "lenet", "autoencoder"]:
        shutil.rmtree(out / old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    x, y = digits()
    # Members first, then controls, then what the models were trained on before.
    save(out / "batch-8.npz", x[:8], y[:8])
    save(out / "batch-32.npz", x[:32], y[:32])
    save(out / "batch-1.npz", x[:1], y[:1])
    save(out / "members-20.npz", x[20:40].clamp(min=0.02), y[20:40])
    save(out / "controls.npz", x[100:500], y[100:500])
    save(out / "clipped.npz", x[100:300].clamp(min=0.02), y[100:300])
    public_x, public_y = normalised(x[600:]), y[600:]

    # A client shares the gradient of eight records, as it is.
    model = train(mlp(), public_x, public_y, 5)
    shared = gradient(model, normalised(x[:8]), y[:8])
    common = {"mean": [MEAN], "std": [STD], "records": len(public_x)}
    export(model, out / "leaky", public_x[:8], public_y[:8], gradient=shared, batch_size=8, **common)

    # Another one shares the gradient of thirty-two, clipped, with noise of a hundred times its size in every number.
    shared = gradient(model, normalised(x[:32]), y[:32])
    size = torch.cat([value.flatten() for value in shared.values()]).norm()
    shared = {name: value / size.clamp(min=1.0) for name, value in shared.items()}
    scale = torch.cat([value.flatten() for value in shared.values()]).square().mean().sqrt()
    shared = {name: value + 100 * scale * torch.randn_like(value) for name, value in shared.items()}
    export(model, out / "noisy", public_x[:8], public_y[:8], gradient=shared, batch_size=32, **common)

    # Convolutions: one record, in evaluation mode.
    model = train(Lenet(), public_x, public_y, 20).eval()
    shared = gradient(model, normalised(x[:1]), y[:1])
    export(model, out / "lenet", public_x[:8], public_y[:8], gradient=shared, batch_size=1, **common)

    # An autoencoder, trained on twenty records until it knows them by heart.
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 192), nn.LeakyReLU(), nn.Linear(192, 192), nn.LeakyReLU(), nn.Linear(192, 64))
    own = x[20:40].clamp(min=0.02)
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 6000)
    for _ in range(6000):
        optimiser.zero_grad()
        loss = F.mse_loss(model(own), own.flatten(1))
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"autoencoder: loss {loss.item():.1e}")
    export(model, out / "autoencoder", own[:4], loss="mse", records=20)


if __name__ == "__main__":
    main()
