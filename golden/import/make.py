"""Models as other programs save them, with what PyTorch computes with them.

    python golden/import/make.py     (needs torch, numpy, onnx, onnxscript, safetensors)

Each case is a folder: what `afterimage init pytorch` prints has exported it (network, weights, probe
with outputs and a gradient), and beside that lie `model.pth` (torch.save) and `model.onnx`, written by
torch.onnx.export. The test reads each and must compute what the probe says.
"""

import importlib.util
import pathlib
import shutil
import sys
import warnings

import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "crates/cli/assets"))
from afterimage_export import export  # noqa: E402

spec = importlib.util.spec_from_file_location("zoo", HERE.parent / "convolutional/make.py")
zoo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(zoo)
torch.set_default_dtype(torch.float32)


class Hostile:
    """What a pickle can do: when Python loads it, it runs a command."""

    def __reduce__(self):
        import os

        return os.system, ("echo this file ran a command",)


class Unet(zoo.Unet):
    """With PyTorch's own names."""

    state_dict = nn.Module.state_dict


class Mixed(nn.Module):
    """What the zoo does not have: depthwise and dilated convolutions, silu, relu6, PReLU by channel, means."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6)
        self.act = nn.PReLU(6)
        self.six = nn.ReLU6()
        self.widen = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = F.silu(self.stem(x))
        x = x + self.six(self.act(self.depthwise(x)))
        x = F.leaky_relu(self.widen(x), 0.2)
        return self.head(self.drop(x.mean((2, 3))))


class Lite(nn.Module):
    """Blocks as EfficientNet-Lite has them: TensorFlow's padding, relu6, depthwise convolutions, a sum."""

    def __init__(self):
        super().__init__()
        self.pad, self.stem = nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.bn0 = nn.BatchNorm2d(8, eps=1e-3, momentum=0.01)
        self.expand, self.bn1 = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.deep, self.bn2 = nn.Conv2d(16, 16, 5, stride=2, groups=16, bias=False), nn.BatchNorm2d(16)
        self.project, self.bn3 = nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.again, self.bn4 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu6(self.bn0(self.stem(self.pad(x))))
        x = F.relu6(self.bn1(self.expand(x)))
        x = F.relu6(self.bn2(self.deep(F.pad(x, (1, 2, 1, 2)))))
        x = self.bn3(self.project(x))
        x = x + self.bn4(self.again(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Rows(nn.Module):
    """Written as people write: view by sizes, functions, a layer without a bias."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(48, 20), nn.Linear(20, 20, bias=False), nn.Linear(20, 4)

    def forward(self, x):
        x = torch.relu(self.fc1(x.view(x.size(0), -1)))
        return self.fc3(torch.tanh(self.fc2(x)))


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4)), (3, 4, 4)),
    "rows": (Rows, (3, 4, 4)),
    "mixed": (Mixed, (3, 8, 8)),
    "lite": (Lite, (3, 16, 16)),
    "autoencoder": (lambda: nn.Sequential(nn.Linear(12, 20), nn.Softplus(), nn.Linear(20, 12)), (12,)),
    "lenet": (zoo.Lenet, (1, 28, 28)),
    "lenet-leakage": (lambda: zoo.Leakage(6, 16), (3, 16, 16)),
    "convnet": (lambda: zoo.Convnet(2, 9), (3, 9, 9)),
    "resnet-18": (lambda: zoo.Resnet(zoo.Basic, [2, 2, 2, 2], 2, True), (3, 16, 16)),
    "resnet-50": (lambda: zoo.Resnet(zoo.Bottleneck, [1, 1, 1, 1], 2, False), (3, 32, 32)),
    "unet": (lambda: Unet([3, 5], False, True), (3, 8, 8)),
    "unet-transposed": (lambda: Unet([3, 4], True, True), (3, 8, 8)),
}


def save_onnx(model, x, path, **options):
    """Without the exporter's notes, which name places on the machine that it ran on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, verbose=False, **options)
    saved = onnx.load(path)
    for part in [saved, saved.graph, *saved.graph.node, *saved.graph.value_info, *saved.graph.input, *saved.graph.output]:
        del part.metadata_props[:]
        part.doc_string = ""
    del saved.graph.value_info[:]
    del saved.functions[:]
    onnx.save(saved, path)


def main():
    for case, (make, shape) in CASES.items():
        torch.manual_seed(1)
        folder = HERE / case
        shutil.rmtree(folder, ignore_errors=True)
        model = make().eval()
        with torch.no_grad():
            zoo.fill(model)
        x = torch.rand(4, *shape)
        outputs = model(x)
        if outputs.shape == x.shape:
            export(model, folder, x, loss="mse")
        else:
            export(model, folder, x, torch.arange(4) % outputs.shape[1])
        torch.save(model.state_dict(), folder / "model.pth")
        batch = ({0: torch.export.Dim("batch")},)
        # Optimised, batch normalisation is folded into convolutions: the same outputs, other gradients.
        normalised = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
        options = {"dynamo": True, "external_data": False, "dynamic_shapes": batch}
        save_onnx(model, x, folder / "model.onnx", optimize=not normalised, **options)
        if case == "mixed":
            save_onnx(model, x, folder / "verbatim.onnx", optimize=False, **options)
        if case == "mlp":
            optimiser = torch.optim.Adam(model.parameters())
            checkpoint = {"epoch": 3, "model_state_dict": model.state_dict(), "optimizer": optimiser.state_dict()}
            torch.save(checkpoint, folder / "checkpoint.pth")
            torch.save(model, folder / "whole.pth")
            torch.save({"fc.weight": Hostile()}, folder / "hostile.pth")
    # The older exporter computes the shape of a view from its input's.
    torch.manual_seed(1)
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    model = Rows().eval()
    with torch.no_grad():
        zoo.fill(model)
    save_onnx(model, torch.rand(4, 3, 4, 4), HERE / "rows/older.onnx", dynamo=False, **names)
    (HERE / "versions.txt").write_text(f"torch {torch.__version__}\nonnx {onnx.__version__}\n")


if __name__ == "__main__":
    main()
