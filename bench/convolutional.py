"""Convolutions, and gradient matching on convolutional networks, in PyTorch.

The other half of `bench/compare` for the cases `conv-*`, `lenet`, `convnet`, `resnet18`, `efficientnet`;
networks and the counter that makes their numbers are those of `golden/convolutional/make.py`,
and `bench/src/convolutional.rs` has the same.
"""

import argparse
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

from matching import median_ms, precision

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden/convolutional"))
import make  # noqa: E402

BATCH = 8
# Channels and side of the four stages of a ResNet-18 on images of 32 pixels.
SHAPES = {"conv-64": (64, 32), "conv-128": (128, 16), "conv-256": (256, 8), "conv-512": (512, 4)}


class Same(torch.nn.Conv2d):
    """A convolution padded as TensorFlow does: what is missing, the larger half behind."""

    def forward(self, x):
        sides = []
        for size, kernel, stride in zip(reversed(x.shape[2:]), reversed(self.kernel_size), reversed(self.stride)):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, sides))


class Inverted(torch.nn.Module):
    """Expand, convolve each channel, project."""

    def __init__(self, inputs, outputs, kernel, stride, expansion):
        super().__init__()
        wide, norm = inputs * expansion, lambda channels: torch.nn.BatchNorm2d(channels, 1e-3, 0.01)
        self.expands, self.around = expansion != 1, stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv, self._bn0 = Same(inputs, wide, 1, bias=False), norm(wide)
        self._depthwise_conv, self._bn1 = Same(wide, wide, kernel, stride, groups=wide, bias=False), norm(wide)
        self._project_conv, self._bn2 = Same(wide, outputs, 1, bias=False), norm(outputs)

    def forward(self, x):
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._bn2(self._project_conv(F.relu6(self._bn1(self._depthwise_conv(y)))))
        return y + x if self.around else y


class Efficientnet(torch.nn.Module):
    """EfficientNet-Lite0 with the names of `zoo::EfficientnetLite`."""

    STAGES = [(1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112)]
    STAGES += [(4, 5, 2, 6, 192), (1, 3, 1, 6, 320)]

    def __init__(self):
        super().__init__()
        norm = lambda channels: torch.nn.BatchNorm2d(channels, 1e-3, 0.01)
        self._conv_stem, self._bn0 = Same(3, 32, 3, 2, bias=False), norm(32)
        blocks, inputs = [], 32
        for count, kernel, stride, expansion, outputs in self.STAGES:
            for block in range(count):
                blocks.append(Inverted(inputs, outputs, kernel, 1 if block else stride, expansion))
                inputs = outputs
        self._blocks = torch.nn.ModuleList(blocks)
        self._conv_head, self._bn1 = Same(320, 1280, 1, bias=False), norm(1280)
        self._fc = torch.nn.Linear(1280, 10)

    def forward(self, x):
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return self._fc(F.relu6(self._bn1(self._conv_head(x))).mean((2, 3)))


NETWORKS = {
    "lenet": (lambda: make.Leakage(12, 32), "eval"),
    "convnet": (lambda: make.Convnet(64, 32), "train"),
    "resnet18": (lambda: make.Resnet(make.Basic, [2, 2, 2, 2], 64, True), "train"),
    "resnet18-224": (lambda: make.Resnet(make.Basic, [2, 2, 2, 2], 64, False), "train"),
    "efficientnet": (Efficientnet, "train"),
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


def matching(case, side, dtype, device, repeat):
    build, mode = NETWORKS["resnet18-224" if case == "resnet18" and side > 64 else case]
    model = build()
    with torch.no_grad():
        make.fill(model)
    model.to(device, dtype).train(mode == "train")
    named = dict(model.named_parameters())
    x = make.uniform("x", (BATCH, 3, side, side)).to(device, dtype).requires_grad_(True)
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
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--tf32", action="store_true")
    args = parser.parse_args()
    precision(args.tf32)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    dtype = {"f32": torch.float32, "f64": torch.float64}[args.dtype]
    if args.case in NETWORKS:
        result = matching(args.case, args.side, dtype, args.device, args.repeat)
    else:
        result = convolution(args.case, dtype, args.device, args.repeat)
    print(json.dumps({**result, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
