"""Golden values of the metrics, by scikit-image and SciPy.

    python golden/metrics/make.py      (needs numpy, scipy, scikit-image, safetensors; see versions.txt)

Pairs of images in [0, 1]: smooth random fields and noisy or shifted copies.
`ssim` is scikit-image's with Gaussian weights; `ssim3` is written out with
SciPy's one-dimensional filters, borders mirrored, as the KKT paper's library
(kornia) defines it.
"""

import pathlib

import numpy as np
import safetensors
import scipy
import scipy.ndimage
import skimage
from safetensors.numpy import save_file
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

HERE = pathlib.Path(__file__).parent
SHAPES = {"digits": (6, 1, 28, 28), "photos": (6, 3, 32, 32), "odd": (3, 2, 13, 17)}


def ssim3(a, b):
    taps = np.exp(-0.5 * (np.arange(-1, 2) / 1.5) ** 2)
    taps /= taps.sum()

    def blur(plane):
        rows = scipy.ndimage.correlate1d(plane, taps, axis=1, mode="mirror")
        return scipy.ndimage.correlate1d(rows, taps, axis=0, mode="mirror")

    values = []
    for x, y in zip(a, b):
        mx, my = blur(x), blur(y)
        vx, vy, vxy = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
        values.append((((2 * mx * my + 1e-4) * (2 * vxy + 9e-4)) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))).mean())
    return np.mean(values)


def main():
    random = np.random.default_rng(20261115)
    out = {}
    for name, shape in SHAPES.items():
        a = scipy.ndimage.gaussian_filter(random.random(shape), (0, 0, 1.2, 1.2))
        a = (a - a.min()) / (a.max() - a.min())
        noise = random.normal(size=shape) * np.linspace(0.01, 0.3, shape[0])[:, None, None, None]
        b = np.clip(np.roll(a, 1, axis=3) * 0.5 + a * 0.5 + noise, 0, 1)
        out[f"{name}/a"], out[f"{name}/b"] = a, b
        rows = {"mse": [], "l2": [], "psnr": [], "ssim": [], "ssim3": [], "ncc": []}
        for x, y in zip(a, b):
            rows["mse"].append(mean_squared_error(x, y))
            rows["l2"].append(np.linalg.norm(x - y))
            rows["psnr"].append(peak_signal_noise_ratio(x, y, data_range=1))
            rows["ssim"].append(
                structural_similarity(
                    x, y, data_range=1, channel_axis=0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
                )
            )
            rows["ssim3"].append(ssim3(x, y))
            rows["ncc"].append(np.corrcoef(x.ravel(), y.ravel())[0, 1])
        out |= {f"{name}/{metric}": np.array(values) for metric, values in rows.items()}
    save_file({key: np.ascontiguousarray(value, dtype=np.float64) for key, value in out.items()}, HERE / "golden.safetensors")
    versions = {"numpy": np, "scipy": scipy, "scikit-image": skimage, "safetensors": safetensors}
    (HERE / "versions.txt").write_text("".join(f"{name} {module.__version__}\n" for name, module in versions.items()))


if __name__ == "__main__":
    main()
