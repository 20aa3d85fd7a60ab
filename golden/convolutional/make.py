"""Golden numbers for convolutional networks, made with PyTorch in double precision.

    python golden/convolutional/make.py     (needs torch, torchvision, numpy, safetensors)

For each network: outputs, parameter gradients of a loss, running statistics after
one training step, and by double backward the outer gradient of gradient matching,

    D = || grad_theta L(x, y) - T ||^2        dD/dx

Weights, targets and inputs come from a counter keyed by name, which the test has too,
so that the file holds results alone.
"""

import pathlib

import numpy as np
import safetensors
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
torch.set_default_dtype(torch.float64)
SAMPLES = 4


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def uniform(name, shape):
    """SplitMix64 of (name, index), mapped to [-1, 1)."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(fnv(name))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float64) / float(1 << 24)
    return torch.from_numpy((unit * 2.0 - 1.0).reshape(tuple(shape)))


def fill(model):
    """Every entry of the state dict by its name and shape."""
    for name, value in model.state_dict().items():
        if not value.is_floating_point():
            continue
        u = uniform(name, value.shape)
        if name.endswith("running_var"):
            u = 1.0 + 0.5 * u
        elif name.endswith("running_mean") or name.endswith("bias"):
            u = 0.1 * u
        elif value.dim() == 1:
            u = 0.25 + 0.1 * u if value.numel() == 1 else 1.0 + 0.2 * u
        else:
            u = u * (6.0 / np.prod(value.shape[1:])) ** 0.5
        value.copy_(u)
    return model


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 5, padding=2), nn.Conv2d(3, 8, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(200, 60), nn.Linear(60, 42), nn.Linear(42, 10)

    def forward(self, x):
        x = F.avg_pool2d(torch.sigmoid(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.sigmoid(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.sigmoid(self.fc2(torch.sigmoid(self.fc1(x)))))


class Leakage(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        layers, inputs = [], 3
        for stride in (2, 2, 1, 1):
            layers += [nn.Conv2d(inputs, width, 5, padding=2, stride=stride), nn.Sigmoid()]
            inputs = width
        self.body, self.fc = nn.Sequential(*layers), nn.Sequential(nn.Linear(width * (side // 4) ** 2, 10))

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


class Convnet(nn.Module):
    def __init__(self, width, side):
        super().__init__()
        inputs = 3
        for i, factor in enumerate([1, 2, 2, 4, 4, 4, 4, 4]):
            setattr(self, f"conv{i}", nn.Conv2d(inputs, factor * width, 3, padding=1))
            setattr(self, f"bn{i}", nn.BatchNorm2d(factor * width))
            inputs = factor * width
        self.linear = nn.Linear(4 * width * (side // 9) ** 2, 10)

    def forward(self, x):
        for i in range(8):
            x = torch.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
            if i in (5, 7):
                x = F.max_pool2d(x, 3)
        return self.linear(x.flatten(1))


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (self.downsample(x) if self.downsample else x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
        return torch.relu(y + (self.downsample(x) if self.downsample else x))


def shortcut(inputs, outputs, stride):
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class Resnet(nn.Module):
    def __init__(self, block, blocks, width, cifar):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False) if cifar else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.cifar, inputs = cifar, width
        for stage, count in enumerate(blocks):
            layers = []
            for index in range(count):
                layers.append(block(inputs, width << stage, 2 if stage > 0 and index == 0 else 1))
                inputs = (width << stage) * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        if not self.cifar:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Unet(nn.Module):
    """Two levels; names as crates/nn/src/zoo/unet.rs has them."""

    def __init__(self, channels, transposed, prelu):
        super().__init__()
        self.layers, self.transposed, self.prelu = nn.ModuleDict(), transposed, prelu
        self.channels = channels
        inputs = 3
        for level, width in enumerate(channels):
            self.twice(f"down.{level}", inputs, width)
            inputs = width
        self.twice("middle", inputs, 2 * inputs)
        below = 2 * inputs
        for level, width in reversed(list(enumerate(channels))):
            if transposed:
                self.add(f"widen.{level}", nn.ConvTranspose2d(below, width, 2, 2))
                below = width
            self.twice(f"up.{level}", width + below, width)
            below = width
        self.conv("out", below, 3)

    def add(self, name, layer):
        self.layers[name.replace(".", "/")] = layer

    def conv(self, name, inputs, outputs):
        self.add(name, nn.Conv2d(inputs, outputs, 3, padding=1))
        if self.prelu:
            self.add(f"{name}.activation", nn.PReLU())

    def twice(self, name, inputs, outputs):
        self.conv(f"{name}.0", inputs, outputs)
        self.conv(f"{name}.1", outputs, outputs)

    def apply_conv(self, name, x):
        x = self.layers[name.replace(".", "/")](x)
        return self.layers[f"{name}.activation".replace(".", "/")](x) if self.prelu else F.softplus(x, threshold=1e9)

    def apply_twice(self, name, x):
        return self.apply_conv(f"{name}.1", self.apply_conv(f"{name}.0", x))

    def forward(self, x):
        skips = []
        for level in range(len(self.channels)):
            x = self.apply_twice(f"down.{level}", x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.apply_twice("middle", x)
        for level in reversed(range(len(self.channels))):
            widen = self.layers[f"widen/{level}"] if self.transposed else lambda x: F.interpolate(x, scale_factor=2)
            x = self.apply_twice(f"up.{level}", torch.cat([skips[level], widen(x)], 1))
        return self.apply_conv("out", x)

    def state_dict(self, *args, **kwargs):
        return {plain(name): value for name, value in super().state_dict(*args, **kwargs).items()}


def plain(name):
    return name.removeprefix("layers.").replace("/", ".")


CASES = {
    "lenet": (lambda: Lenet(), (1, 28, 28), "eval"),
    "lenet-leakage": (lambda: Leakage(6, 16), (3, 16, 16), "eval"),
    "convnet": (lambda: Convnet(3, 18), (3, 18, 18), "train"),
    "resnet-18-train": (lambda: Resnet(Basic, [2, 2, 2, 2], 3, True), (3, 16, 16), "train"),
    "resnet-18-eval": (lambda: Resnet(Basic, [2, 2, 2, 2], 3, True), (3, 16, 16), "eval"),
    "resnet-50-train": (lambda: Resnet(Bottleneck, [3, 4, 6, 3], 2, False), (3, 64, 64), "train"),
    "resnet-50-eval": (lambda: Resnet(Bottleneck, [3, 4, 6, 3], 2, False), (3, 64, 64), "eval"),
    "unet": (lambda: Unet([3, 5], False, False), (3, 12, 12), "eval"),
    "unet-transposed": (lambda: Unet([3, 4], True, True), (3, 8, 8), "eval"),
}


def compute(case, draw, make, shape, mode, dtype):
    """Everything there is to compare about one case, for one draw of the inputs."""
    out, model = {}, make()
    with torch.no_grad():
        fill(model)
    model.to(dtype).train(mode == "train")
    named = {plain(name): p for name, p in model.named_parameters()}
    x = uniform(f"{case}/x/{draw}", (SAMPLES, *shape)).to(dtype).requires_grad_(True)
    outputs = model(x)
    out[f"{case}/outputs"] = outputs
    for name, buffer in model.named_buffers():
        if mode == "train" and buffer.is_floating_point():
            out[f"{case}/buffer/{name}"] = buffer
    if outputs.dim() == 2:
        loss = F.cross_entropy(outputs, torch.arange(SAMPLES) * 3 % 10)
    else:
        loss = F.mse_loss(outputs, uniform(f"{case}/y", outputs.shape).to(dtype))
    grads = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    targets = [0.1 * uniform(f"{case}/target/{name}", p.shape).to(dtype) for name, p in named.items()]
    distance = sum(((g - t) ** 2).sum() for g, t in zip(grads, targets))
    (outer,) = torch.autograd.grad(distance, [x])
    out[f"{case}/loss"], out[f"{case}/distance"], out[f"{case}/outer"] = loss.reshape(1), distance.reshape(1), outer
    for name, grad in zip(named, grads):
        out[f"{case}/grad/{name}"] = grad
    return {name: value.detach().double().clone().contiguous() for name, value in out.items()}


def record(out, case, make, shape, mode):
    """The first draw at which single precision falls on the same side of every kink."""
    for draw in range(1000):
        wide = compute(case, draw, make, shape, mode, torch.float64)
        narrow = compute(case, draw, make, shape, mode, torch.float32)
        outer = f"{case}/outer"
        if (narrow[outer] - wide[outer]).norm() <= 1e-4 * wide[outer].norm():
            print(case, "draw", draw)
            out.update(wide)
            out[f"{case}/draw"] = torch.tensor([draw])
            return
    raise SystemExit(f"no draw of {case} stays off the kinks in single precision")


def torchvision_names():
    """Names and shapes of torchvision's own state dicts."""
    import torchvision.models as models

    lines = []
    for name, keep in [("resnet18", ""), ("resnet34", ""), ("resnet50", ""), ("alexnet", "features."), ("vgg16", "features.")]:
        with torch.device("meta"):
            state = getattr(models, name)(weights=None).state_dict()
        for key, value in state.items():
            if key.startswith(keep) and not key.endswith("num_batches_tracked"):
                lines.append(f"{name} {key} {list(value.shape)}")
    return "\n".join(lines) + "\n"


def main():
    (HERE / "torchvision.txt").write_text(torchvision_names())
    out = {}
    for case, (make, shape, mode) in CASES.items():
        record(out, case, make, shape, mode)
    save_file({name: value.detach().clone().contiguous() for name, value in out.items()}, HERE / "golden.safetensors")
    import torchvision

    versions = f"torch {torch.__version__}\ntorchvision {torchvision.__version__}\nnumpy {np.__version__}\nsafetensors {safetensors.__version__}\n"
    (HERE / "versions.txt").write_text(versions)


if __name__ == "__main__":
    main()
