"""One matching iteration (KKT / NTK / gradient matching) in PyTorch by double backward.

The other half of `bench/compare`; inputs are made from the same counter as the
Rust half (`bench/src/problem.rs`), so that both compute the same numbers.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch

CASES = {
    "a": (784, 1000, 200),
    "b": (3072, 1000, 1000),
    "c": (3072, 4096, 100),
    "e": (3072, 4096, 40),
    "f": (3072, 4096, 1000),
    "tiny": (20, 30, 7),
}
ALPHA = 100.0


def uniform(stream, count, scale):
    """SplitMix64 of (stream, index), mapped to [-scale, scale): the Rust half has the same."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    unit = (z >> np.uint64(40)).astype(np.float64) / float(1 << 24)
    return (unit * 2.0 - 1.0) * scale


class SurrogateRelu(torch.autograd.Function):
    """ReLU forward, sigmoid(alpha z) as its derivative, as Haim et al. (2022) define it."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.relu(z)

    @staticmethod
    def backward(ctx, grad):
        (z,) = ctx.saved_tensors
        return grad * torch.sigmoid(ALPHA * z)


def problem(case, dtype, device):
    d, h, m = CASES[case]
    s1, s2 = (6.0 / d) ** 0.5, (6.0 / h) ** 0.5

    def t(stream, shape, scale):
        count = int(np.prod(shape))
        return torch.from_numpy(uniform(stream, count, scale).reshape(shape)).to(device, dtype)

    theta = [t(1, (h, d), s1), t(2, (h,), 0.1), t(3, (h, h), s2), t(4, (h,), 0.1), t(5, (1, h), s2), t(10, (1,), 0.1)]
    return theta, t(6, (m, d), 1.0), t(7, (m, 1), 1.0), t(8, (m, d), 1.0), t(9, (m, 1), 1.0)


def gradient(theta, x, c, create_graph):
    w1, b1, w2, b2, w3, b3 = theta
    a = SurrogateRelu.apply(torch.nn.functional.linear(x, w1, b1))
    a = SurrogateRelu.apply(torch.nn.functional.linear(a, w2, b2))
    f = torch.nn.functional.linear(a, w3, b3)
    return torch.autograd.grad((c * f).sum(), theta, create_graph=create_graph)


def iteration(theta, x, c, target):
    x.grad = c.grad = None
    grads = gradient(theta, x, c, True)
    loss = sum(((g - t) ** 2).sum() for g, t in zip(grads, target))
    loss.backward(inputs=[x, c])
    return loss


def epoch(theta, x, y, rate):
    """One full-batch epoch of the KKT victim: logistic loss, plain gradient descent."""
    w1, b1, w2, b2, w3, b3 = theta
    a = torch.relu(torch.nn.functional.linear(x, w1, b1))
    a = torch.relu(torch.nn.functional.linear(a, w2, b2))
    f = torch.nn.functional.linear(a, w3, b3)
    loss = torch.nn.functional.softplus(-y * f).mean()
    grads = torch.autograd.grad(loss, theta)
    with torch.no_grad():
        for p, g in zip(theta, grads):
            p.sub_(g, alpha=rate)
    return loss


def precision(tf32):
    """By default PyTorch multiplies matrices in f32 and convolves in TF32: here both do the same."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def median_ms(run, count):
    for _ in range(2):
        run()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", help="a, b, c, e, f, tiny, one of them with /kkt, train or product")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f64"])
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the matching cases")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--tf32", action="store_true", help="let products of f32 on a GPU round to TF32")
    args = parser.parse_args()
    precision(args.tf32)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    dtype = {"f32": torch.float32, "f64": torch.float64}[args.dtype]
    if args.case == "product":
        for m, n, k in [(4096, 4096, 4096), (1000, 1000, 3072), (200, 1000, 784), (40, 4096, 4096)]:
            x, w, c = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(m, n, dtype=dtype)
            giga = 2.0 * m * n * k / 1e6
            transposed = giga / median_ms(lambda: x @ w.T, args.repeat)
            both = 2.0 * giga / median_ms(lambda: (x @ w.T, c @ w), args.repeat)
            print(f"{m} x {n} x {k}: {transposed:.0f} GF/s transposed, {both:.0f} both")
        return
    if args.case == "train":
        d, h, n = 784, 1000, 500
        s1, s2 = d**-0.5, h**-0.5
        shapes = [((h, d), s1), ((h,), s1), ((h, h), s2), ((h,), s2), ((1, h), s2), ((1,), s2)]
        theta = [
            torch.from_numpy(uniform(20 + i, int(np.prod(s)), scale).reshape(s)).to(dtype).requires_grad_(True)
            for i, (s, scale) in enumerate(shapes)
        ]
        x = torch.from_numpy(uniform(30, n * d, 1.0).reshape(n, d)).to(dtype)
        y = torch.from_numpy(np.sign(uniform(31, n, 1.0)).reshape(n, 1)).to(dtype)
        loss = epoch(theta, x, y, 0.01)
        result = {"loss": loss.item()}
        result["ms"] = median_ms(lambda: epoch(theta, x, y, 0.01), args.repeat)
    else:
        name, _, kkt = args.case.partition("/")
        theta, x, c, x0, c0 = problem(name, dtype, args.device)
        for p in theta:
            p.requires_grad_(True)
        target = [p.detach() for p in theta] if kkt else [g.detach() for g in gradient(theta, x0, c0, False)]
        x.requires_grad_(True)
        c.requires_grad_(True)
        loss = iteration(theta, x, c, target)
        result = {"loss": loss.item(), "x_norm": x.grad.double().norm().item(), "c_norm": c.grad.double().norm().item()}
        result["ms"] = median_ms(lambda: iteration(theta, x, c, target), args.repeat)
    result["torch"] = torch.__version__
    print(json.dumps(result))


if __name__ == "__main__":
    main()
