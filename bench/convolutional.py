"""Convolutions, and gradient matching on convolutional networks, in PyTorch.

The other half of `bench/compare` for the cases `conv-*`, `lenet`, `convnet`, `resnet18`;
networks and the counter that makes their numbers are those of `golden/convolutional/make.py`,
and `bench/src/convolutional.rs` has the same.
"""

import argparse
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

from matching import median_ms

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden/convolutional"))
import make  # noqa: E402

BATCH = 8
# Channels and side of the four stages of a ResNet-18 on images of 32 pixels.
SHAPES = {"conv-64": (64, 32), "conv-128": (128, 16), "conv-256": (256, 8), "conv-512": (512, 4)}
NETWORKS = {
    "lenet": (lambda: make.Leakage(12, 32), "eval"),
    "convnet": (lambda: make.Convnet(64, 32), "train"),
    "resnet18": (lambda: make.Resnet(make.Basic, [2, 2, 2, 2], 64, True), "train"),
}


def convolution(case, dtype, device, repeat):
    name, _, part = case.partition("/")
    channels, side = SHAPES[name]
    shape = (BATCH, channels, side, side)
    x, g = (make.uniform(key, shape).to(device, dtype) for key in ("x", "g"))
    w = (make.uniform("w", (channels, channels, 3, 3)) * 0.05).to(device, dtype)
    if part == "forward":
        run = lambda: (F.conv2d(x, w, padding=1),)
    else:
        x.requires_grad_(True), w.requires_grad_(True)
        run = lambda: torch.autograd.grad(F.conv2d(x, w, padding=1), (x, w), g)
    norms = [part.double().norm().item() for part in run()]
    return {**{f"norm{i}": norm for i, norm in enumerate(norms)}, "ms": median_ms(run, repeat)}


def matching(case, dtype, device, repeat):
    build, mode = NETWORKS[case]
    model = build()
    with torch.no_grad():
        make.fill(model)
    model.to(device, dtype).train(mode == "train")
    named = dict(model.named_parameters())
    x = make.uniform("x", (BATCH, 3, 32, 32)).to(device, dtype).requires_grad_(True)
    y = (torch.arange(BATCH) * 3 % 10).to(device)
    targets = [0.01 * make.uniform(f"target/{name}", p.shape).to(device, dtype) for name, p in named.items()]

    def iteration():
        x.grad = None
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(named.values()), create_graph=True)
        loss = sum(((g - t) ** 2).sum() for g, t in zip(grads, targets))
        loss.backward(inputs=[x])
        return loss

    loss = iteration()
    result = {"loss": loss.item(), "x_norm": x.grad.double().norm().item()}
    return {**result, "ms": median_ms(iteration, repeat)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f64"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    dtype = {"f32": torch.float32, "f64": torch.float64}[args.dtype]
    run = matching if args.case in NETWORKS else convolution
    print(json.dumps({**run(args.case, dtype, args.device, args.repeat), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
