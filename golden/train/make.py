"""Golden training runs, made with PyTorch in double precision: 25 full-batch steps each.

    python golden/train/make.py      (needs torch, safetensors; see versions.txt)
"""

import pathlib

import safetensors
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
STEPS = 25

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "momentum-decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "adam-decay": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
}


def main():
    x = torch.randn(9, 4)
    y = torch.randint(0, 3, (9,))
    start = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).state_dict()
    out = {"x": x, "y": y}
    out |= {f"start/{name}": value.clone() for name, value in start.items()}
    for name, make in OPTIMIZERS.items():
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        network.load_state_dict(start)
        optimizer = make(network.parameters())
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        out |= {f"{name}/{key}": value.detach().clone() for key, value in network.state_dict().items()}
        out[f"{name}/loss"] = torch.nn.functional.cross_entropy(network(x), y).detach().reshape(1)
    save_file(out, HERE / "golden.safetensors")
    (HERE / "versions.txt").write_text(f"torch {torch.__version__}\nsafetensors {safetensors.__version__}\n")


if __name__ == "__main__":
    main()
