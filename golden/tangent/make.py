"""Golden values of infinitely wide tangent kernels, by neural-tangents (Novak et al., 2020).

    python golden/tangent/make.py      (needs jax, neural-tangents, safetensors; see versions.txt)

For so many hidden ReLU layers and weight deviations: the kernel between `x` and
`y` and of `x` with itself, and the gradient in `x` of a weighted sum of the first
by automatic differentiation.
"""

import pathlib

import jax
import numpy as np
import safetensors
from safetensors.numpy import save_file

jax.config.update("jax_enable_x64", True)

import neural_tangents
from neural_tangents import stax

HERE = pathlib.Path(__file__).parent

rng = np.random.default_rng(7)
x, y = rng.normal(size=(4, 5)), rng.normal(size=(3, 5))
golden = {"x": x, "y": y}
for hidden in (1, 2, 3):
    for weight_std in (1.0, 1.3):
        layers = []
        for _ in range(hidden):
            layers += [stax.Dense(512, W_std=weight_std), stax.Relu()]
        kernel = stax.serial(*layers, stax.Dense(1, W_std=weight_std))[2]
        weights = rng.normal(size=(4, 3))
        case = f"{hidden}.{weight_std}"
        golden[f"{case}.between"] = np.array(kernel(x, y, "ntk"))
        golden[f"{case}.own"] = np.array(kernel(x, None, "ntk"))
        golden[f"{case}.weights"] = weights
        golden[f"{case}.gradient"] = np.array(jax.grad(lambda x: (weights * kernel(x, y, "ntk")).sum())(x))

save_file(golden, HERE / "golden.safetensors")
versions = {"jax": jax, "neural-tangents": neural_tangents, "numpy": np, "safetensors": safetensors}
(HERE / "versions.txt").write_text("".join(f"{name} {module.__version__}\n" for name, module in versions.items()))
