"""Golden values of the metrics, by scikit-image and SciPy.

    python golden/metrics/make.py      (needs numpy, scipy, scikit-image, safetensors; see versions.txt)

Pairs of images in [0, 1]: smooth random fields and noisy or shifted copies.
`ssim` is scikit-image's with Gaussian weights; `ssim3` is written out with
SciPy's one-dimensional filters, borders mirrored, as the KKT paper's library
(kornia) defines it; `fft2d` is 1 - cosine of the magnitudes of NumPy's FFT, each
channel without its mean. `shift` is scikit-image's phase correlation of a
picture and its shifted, noisy copy; `pairs` SciPy's assignment for `costs`.
"""

import pathlib

import numpy as np
import safetensors
import scipy
import scipy.ndimage
import skimage
from safetensors.numpy import save_file
from scipy.optimize import linear_sum_assignment
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from skimage.registration import phase_cross_correlation

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


def fft2d(a, b):
    x, y = (np.abs(np.fft.fft2(image - image.mean(axis=(1, 2), keepdims=True))).ravel() for image in (a, b))
    return 1 - x @ y / np.sqrt((x @ x) * (y @ y))


def shifted(image, down, right):
    rows = np.clip(np.arange(image.shape[0]) - down, 0, image.shape[0] - 1)
    columns = np.clip(np.arange(image.shape[1]) - right, 0, image.shape[1] - 1)
    return image[rows][:, columns]


def main():
    random = np.random.default_rng(20261115)
    out = {}
    for name, shape in SHAPES.items():
        a = scipy.ndimage.gaussian_filter(random.random(shape), (0, 0, 1.2, 1.2))
        a = (a - a.min()) / (a.max() - a.min())
        noise = random.normal(size=shape) * np.linspace(0.01, 0.3, shape[0])[:, None, None, None]
        b = np.clip(np.roll(a, 1, axis=3) * 0.5 + a * 0.5 + noise, 0, 1)
        out[f"{name}/a"], out[f"{name}/b"] = a, b
        rows = {"mse": [], "l2": [], "psnr": [], "ssim": [], "ssim3": [], "ncc": [], "fft2d": []}
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
            rows["fft2d"].append(fft2d(x, y))
        out |= {f"{name}/{metric}": np.array(values) for metric, values in rows.items()}
    fixed = scipy.ndimage.gaussian_filter(random.random((8, 24, 31)), (0, 0.7, 0.7))
    moved = np.stack([shifted(image, *random.integers(-5, 6, 2)) for image in fixed])
    moved += 0.02 * random.normal(size=moved.shape)
    shifts = [phase_cross_correlation(a, b, normalization="phase", upsample_factor=1)[0] for a, b in zip(fixed, moved)]
    out |= {"shift/fixed": fixed, "shift/moved": moved, "shift/found": np.array(shifts)}
    costs = random.random((20, 30))
    out |= {"pairs/costs": costs, "pairs/columns": linear_sum_assignment(costs)[1].astype(np.float64)}
    save_file({key: np.ascontiguousarray(value, dtype=np.float64) for key, value in out.items()}, HERE / "golden.safetensors")
    versions = {"numpy": np, "scipy": scipy, "scikit-image": skimage, "safetensors": safetensors}
    (HERE / "versions.txt").write_text("".join(f"{name} {module.__version__}\n" for name, module in versions.items()))


if __name__ == "__main__":
    main()
