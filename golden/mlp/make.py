"""Golden numbers for fully connected networks, made with PyTorch in double precision.

    python golden/mlp/make.py        (needs torch, numpy, safetensors; see versions.txt)

For every activation and loss, and for networks with branches: outputs, loss,
parameter gradients, and by double backward the outer gradients of two
gradient-matching problems:

    loss matching    D = || grad_theta L(x, y) - T ||^2                  dD/dx
    fixed weights    D = || sum_ik c_ik grad_theta f_k(x_i) - T ||^2     dD/dx, dD/dc
"""

import pathlib

import numpy as np
import safetensors
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
torch.manual_seed(20261115)
torch.set_default_dtype(torch.float64)
ALPHA = 100.0


class SurrogateRelu(torch.autograd.Function):
    """As Haim et al. (2022): ReLU forward, sigmoid(alpha z) for its derivative."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.relu(z)

    @staticmethod
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return grad * torch.sigmoid(ALPHA * z)


ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "leaky-relu(0.01)": lambda z: F.leaky_relu(z, 0.01),
    "softplus(1)": lambda z: F.softplus(z, 1.0, threshold=1e9),
    "softplus(10)": lambda z: F.softplus(z, 10.0, threshold=1e9),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "relu6": F.relu6,
    "square-cube": lambda z: z**2 + z**3,
    "surrogate-relu(100)": SurrogateRelu.apply,
}
SAMPLES, INPUTS, OUTPUTS = 4, 5, 3


def mlp(activation):
    """5-7-6-3 with PyTorch's nn.Sequential names."""
    theta = {
        "0.weight": torch.randn(7, INPUTS) * 0.6,
        "0.bias": torch.randn(7) * 0.5,
        "2.weight": torch.randn(6, 7) * 0.6,
        "2.bias": torch.randn(6) * 0.5,
        "4.weight": torch.randn(OUTPUTS, 6) * 0.6,
        "4.bias": torch.randn(OUTPUTS) * 0.5,
    }

    def forward(p, x):
        if activation == "prelu":
            act1 = lambda z: F.prelu(z, p["1.weight"])
            act2 = lambda z: F.prelu(z, p["3.weight"])
        else:
            act1 = act2 = ACTIVATIONS[activation]
        a = act1(F.linear(x, p["0.weight"], p["0.bias"]))
        a = act2(F.linear(a, p["2.weight"], p["2.bias"]))
        return F.linear(a, p["4.weight"], p["4.bias"])

    if activation == "prelu":
        theta["1.weight"] = torch.tensor([0.3])
        theta["3.weight"] = torch.tensor([-0.2])
    return theta, forward, (INPUTS,)


def tied():
    theta = {"encoder.weight": torch.randn(4, 6) * 0.6, "encoder.bias": torch.randn(4) * 0.5, "decoder.bias": torch.randn(6) * 0.5}

    def forward(p, x):
        return F.linear(torch.tanh(F.linear(x, p["encoder.weight"], p["encoder.bias"])), p["encoder.weight"].T, p["decoder.bias"])

    return theta, forward, (6,)


def branches():
    """The network `branches` of crates/nn/tests/common."""
    theta = {
        "slopes.weight": torch.tensor([0.3, -0.4]),
        "a.weight": torch.randn(5, 8) * 0.5,
        "a.bias": torch.randn(5) * 0.5,
        "b.weight": torch.randn(5, 5) * 0.5,
        "more.weight": torch.randn(18) * 0.5,
        "out.weight": torch.randn(2, 18) * 0.5,
        "out.bias": torch.randn(2) * 0.5,
    }

    def forward(p, x):
        flat = F.prelu(x, p["slopes.weight"]).flatten(1)
        a = F.linear(flat, p["a.weight"], p["a.bias"])
        bend = F.softplus(a, 2.0, threshold=1e9)
        total = bend + F.linear(bend, p["b.weight"]) + a
        join = F.prelu(torch.cat([total, flat, total], 1), p["more.weight"])
        return F.silu(F.linear(join, p["out.weight"], p["out.bias"]))

    return theta, forward, (2, 4)


def losses(outputs):
    """Name, targets as stored, and the loss of a batch (mean, as PyTorch defines it)."""
    n, k = outputs.shape
    signs = torch.sign(torch.randn(n, k))
    values = torch.randn(n, k)
    classes = torch.randint(0, k, (n,))
    soft = torch.softmax(torch.randn(n, k), 1)
    yield "logistic", signs, lambda f: F.binary_cross_entropy_with_logits(f, (signs + 1) / 2, reduction="none").sum(1).mean()
    yield "mse", values, lambda f: F.mse_loss(f, values)
    yield "half-squared", values, lambda f: 0.5 * ((f - values) ** 2).sum(1).mean()
    yield "cross-entropy-classes", classes, lambda f: F.cross_entropy(f, classes)
    yield "cross-entropy-soft", soft, lambda f: F.cross_entropy(f, soft)


def square_distance(grads, target):
    return sum(((g - t) ** 2).sum() for g, t in zip(grads, target))


def record(out, case, theta, forward, shape):
    x = torch.randn(SAMPLES, *shape, requires_grad=True)
    for p in theta.values():
        p.requires_grad_(True)
    names, values = list(theta), list(theta.values())
    target = [torch.randn_like(p) * 0.1 for p in values]
    outputs = forward(theta, x)
    out[f"{case}/x"], out[f"{case}/outputs"] = x, outputs
    for name, p, t in zip(names, values, target):
        out[f"{case}/theta/{name}"], out[f"{case}/target/{name}"] = p, t

    c = torch.randn_like(outputs).detach().requires_grad_(True)
    grads = torch.autograd.grad((c * forward(theta, x)).sum(), values, create_graph=True)
    outer_x, outer_c = torch.autograd.grad(square_distance(grads, target), [x, c])
    out[f"{case}/fixed/c"], out[f"{case}/fixed/outer_x"], out[f"{case}/fixed/outer_c"] = c, outer_x, outer_c

    for loss_name, y, loss in losses(outputs):
        value = loss(forward(theta, x))
        grads = torch.autograd.grad(value, values, create_graph=True)
        (outer_x,) = torch.autograd.grad(square_distance(grads, target), [x])
        key = f"{case}/{loss_name}"
        out[f"{key}/y"], out[f"{key}/value"], out[f"{key}/outer_x"] = y, value.reshape(1), outer_x
        for name, g in zip(names, grads):
            out[f"{key}/grad/{name}"] = g


def main():
    out = {}
    for activation in [*ACTIVATIONS, "prelu"]:
        record(out, activation, *mlp(activation))
    record(out, "tied", *tied())
    record(out, "branches", *branches())
    out = {name: value.detach().clone().contiguous() for name, value in out.items()}
    save_file(out, HERE / "golden.safetensors")
    versions = f"torch {torch.__version__}\nnumpy {np.__version__}\nsafetensors {safetensors.__version__}\n"
    (HERE / "versions.txt").write_text(versions)


if __name__ == "__main__":
    main()
