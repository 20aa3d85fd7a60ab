"""Writes a PyTorch model as a folder that `afterimage check` and `afterimage audit` read.

One file, needs nothing but torch, and reaches for nothing on a network. From Python:

    from afterimage_export import export
    export(model, "exported", inputs=x, labels=y, mean=[0.5], std=[0.25])

or, for a function that makes the model, from a shell:

    python afterimage_export.py mymodule:make_model --weights model.pth --inputs batch.pt --out exported

`inputs` is a small batch exactly as the model is fed with it in training, normalised; `mean` and
`std` are what it was normalised with. The folder then holds

    network.toml            the layers, traced by torch.fx
    weights.safetensors     parameters and running statistics
    preprocessing.toml      size, range, mean and std of the inputs
    training.toml           the loss, and what else is known of the training
    probe.safetensors       a few inputs, the model's outputs for them, one gradient
    before.safetensors      an earlier checkpoint, if one is given
    gradient.safetensors    the gradient or update of a step, if one is given

It says which module cannot be written, where it is, and what to do.
"""

import argparse
import copy
import importlib
import json
import math
import operator
import os
import struct
import sys

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F
from torch.fx.passes.shape_prop import ShapeProp

LOSSES = ("cross-entropy", "logistic", "mse", "half-squared")
PROBES = 8


class Unsupported(Exception):
    """A part of the model that has no layer in Afterimage."""


def export(
    model,
    out,
    inputs,
    labels=None,
    *,
    pixels=None,
    mean=None,
    std=None,
    range=(0.0, 1.0),
    loss="cross-entropy",
    reduction="mean",
    records=None,
    before=None,
    gradient=None,
    batch_size=None,
    local_steps=None,
    lr=None,
    mode=None,
):
    """Writes the folder `out`.

    model       an nn.Module; the probe is computed with a copy of it in eval mode and double precision
    inputs      a batch as the model is fed with it; a few of its samples become the probe
    labels      classes (or values, for the squared losses) of these samples; for an autoencoder
                nothing: it gives back its inputs (loss="mse")
    pixels      the same samples before normalisation, if you have them: a second check of mean and std
    mean, std   one number, or one for each channel; x = (pixel - mean) / std
    range       smallest and largest pixel before normalisation
    loss        one of cross-entropy, logistic (binary cross-entropy with logits: one output), mse, half-squared
    records     how many samples it was trained on
    before      an earlier checkpoint: a state dict, or the path of one
    gradient    what a client shared for one batch: {name: gradient}, or a path. With local_steps and lr
                an update, (before - after), which becomes a gradient when it is divided by lr * local_steps
    batch_size  samples in that batch
    mode        "train" or "eval" (taken if it is not given): what batch normalisation divided by when the gradient
                was taken
    """
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; one of {', '.join(LOSSES)} is needed")
    # A copy: the model is left as it is, every module in the mode that it was in.
    exact = copy.deepcopy(model).eval()
    inputs = torch.as_tensor(inputs)
    if labels is not None and len(labels) != len(inputs):
        raise ValueError(f"inputs are {len(inputs)} and labels {len(labels)}: one for each is needed")
    inputs = inputs.detach()[:PROBES].to(next(exact.parameters()))
    spec = Writer(exact, tuple(inputs.shape[1:])).spec()
    probe = {"inputs": inputs}
    if pixels is not None:
        probe["pixels"] = pixels.detach()[: len(inputs)]
    target = inputs if labels is None and loss in ("mse", "half-squared") else labels
    if target is not None:
        target = torch.as_tensor(target)[: len(inputs)].to(inputs.device)
        if labels is not None:
            # Classes as whole numbers, values as numbers, whatever they were given as.
            classes = {"cross-entropy": lambda y: y.long(), "logistic": lambda y: (y > 0.5).long()}
            target = classes.get(loss, lambda y: y.float())(target)
            probe["labels"] = target
    # In double precision: in single, a unit so near its kink that rounding decides would count as a difference.
    exact = exact.double().requires_grad_(True)
    with torch.no_grad():
        answers = exact(inputs.double())
    gives = tuple(answers.shape[1:])
    if gives in ((), (1,)) and loss == "cross-entropy":
        raise ValueError('the model has one output: say loss="logistic" (binary cross-entropy with logits), "mse" or "half-squared"')
    if loss == "logistic" and isinstance(list(exact.modules())[-1], nn.Sigmoid) and bool(((0 <= answers) & (answers <= 1)).all()):
        raise ValueError('the model ends with a sigmoid, and loss="logistic" takes the number before it: leave the sigmoid out, as for '
                         'binary_cross_entropy_with_logits; weights and gradients are the same')
    if labels is None and loss == "cross-entropy" and math.prod(gives) == math.prod(inputs.shape[1:]):
        print('note: the model gives as many numbers as it takes: if it is an autoencoder, say loss="mse"')
    outputs, grads = differentiate(exact, inputs.double(), target, loss, reduction)
    probe["outputs"] = outputs.float()
    probe.update({f"grad.{name}": value.float() for name, value in grads.items()})
    if (mean is None) != (std is None):
        raise ValueError("mean and std belong together: x = (pixel - mean) / std; give both or neither")
    prepared = preprocessing(inputs.shape[1:], range, mean, std)
    about = {"loss": loss, "reduction": reduction, "records": records, "batch_size": batch_size}
    files = {}
    if gradient is not None:
        if batch_size is None and local_steps is None:
            print("note: batch_size is not given; attacks then have to find out how many samples there were")
        normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in exact.modules())
        if mode is None and normalised:
            print('note: mode is not given, and the model has batch normalisation: the gradient is taken for one of eval mode; '
                  'of a training step, say mode="train"')
        about["mode"] = mode
        if local_steps is not None:
            if lr is None:
                raise ValueError("local_steps needs lr, the client's learning rate")
            about["local"] = {"steps": int(local_steps), "lr": float(lr)}
        shared, own = fitting(named(gradient, "gradient"), "gradient", model.state_dict()), dict(model.named_parameters())
        unknown = [name for name in shared if name not in model.state_dict()]
        if unknown:
            raise ValueError(f"gradient has {unknown[0]!r}, which the model does not have; its parameters are {', '.join(own)}")
        if local_steps is not None:
            # The change of running statistics is no gradient.
            shared = {name: value / (lr * local_steps) for name, value in shared.items() if name in own}
        files["gradient.safetensors"] = shared
    if before is not None:
        earlier, own = fitting(named(before, "before"), "before", model.state_dict()), dict(model.named_parameters())
        missing = [name for name in own if name not in earlier]
        if missing:
            raise ValueError(f"before has no {missing[0]!r}, which the model has: is it a checkpoint of this model?")
        files["before.safetensors"] = earlier
    # Written last: a folder that is there is whole.
    os.makedirs(out, exist_ok=True)
    write_text(out, "network.toml", spec)
    write_tensors(out, "weights.safetensors", model.state_dict())
    write_text(out, "preprocessing.toml", prepared)
    write_text(out, "training.toml", toml({key: value for key, value in about.items() if value is not None}))
    write_tensors(out, "probe.safetensors", probe)
    for name, tensors in files.items():
        write_tensors(out, name, tensors)
    print(f"{out}: written. Next: afterimage check {out}")


def differentiate(model, inputs, target, loss, reduction):
    """Outputs for the probe and the gradient of its loss in every parameter."""
    if target is None:
        with torch.no_grad():
            return model(inputs), {}
    model.zero_grad()
    outputs = model(inputs)
    if loss == "cross-entropy":
        value = F.cross_entropy(outputs, target.long(), reduction=reduction)
    elif loss == "logistic":
        # Labels 0 and 1; one output.
        value = F.binary_cross_entropy_with_logits(outputs.flatten(), target.to(outputs).flatten(), reduction=reduction)
    else:
        # The mean over a sample's outputs (mse), or half of their sum; then the batch is reduced.
        square = (outputs - target.to(outputs).reshape(outputs.shape)).flatten(1) ** 2
        each = square.mean(1) if loss == "mse" else 0.5 * square.sum(1)
        value = each.mean() if reduction == "mean" else each.sum()
    names, parameters = zip(*model.named_parameters())
    grads = torch.autograd.grad(value, parameters, allow_unused=True)
    return outputs.detach(), {n: torch.zeros_like(p) if g is None else g for n, p, g in zip(names, parameters, grads)}


def named(given, what):
    """Tensors by their names, or an error that says how to write them."""
    tensors = state(given)
    if not hasattr(tensors, "items"):
        hint = "{n: p.grad for n, p in model.named_parameters()}" if what == "gradient" else "a state dict"
        raise TypeError(f"{what} is a {type(tensors).__name__}; tensors with their names are needed: {hint}")
    missing = [name for name, value in tensors.items() if value is None]
    if missing:
        raise ValueError(f"{what} has no numbers for {missing[0]!r} (None): was it in the step, or is it frozen? give zeros for what is frozen")
    return dict(tensors.items())


def fitting(tensors, what, now):
    """The same tensors, if each that the model has is of the model's shape."""
    for name, value in now.items():
        given = tensors.get(name, value)
        if tuple(given.shape) != tuple(value.shape):
            raise ValueError(f"{what} has {name!r} of shape {tuple(given.shape)}, and the model of {tuple(value.shape)}: is it of this model?")
    return tensors


def state(given):
    """A state dict, from one or from its file."""
    if isinstance(given, (str, os.PathLike)):
        given = torch.load(given, map_location="cpu", weights_only=True)
    return given.state_dict() if isinstance(given, nn.Module) else given


def preprocessing(shape, limits, mean, std):
    def numbers(values):
        values = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
        return values if isinstance(values, list) else [values]

    lines = {"size": list(shape), "range": [float(end) for end in limits]}
    for name, given in (("mean", mean), ("std", std)):
        if given is None:
            continue
        lines[name] = numbers(given)
        if len(lines[name]) not in (1, shape[0]):
            raise ValueError(f"{name} has {len(lines[name])} numbers, and samples {shape[0]} channels: give one, or one each")
    return toml(lines)


def toml(table):
    return "".join(f"{key} = {inline(value)}\n" for key, value in table.items())


def inline(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inline(item) for item in value) + "]"
    if isinstance(value, float):
        text = repr(value)
        return text if any(mark in text for mark in ".en") else text + ".0"
    return json.dumps(value) if isinstance(value, str) else str(value)


def write_text(folder, name, text):
    path = os.path.join(folder, name)
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


KINDS = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32"}


def write_tensors(folder, name, tensors):
    """A safetensors file: the length of a header, the header, the numbers."""
    header, parts, place = {}, [], 0
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        if value.dtype not in KINDS:
            value = value.to(torch.float32 if value.is_floating_point() else torch.int64)
        data = bytes(value.reshape(-1).view(torch.uint8).numpy()) if value.numel() else b""
        header[key] = {"dtype": KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [place, place + len(data)]}
        parts.append(data)
        place += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(folder, name)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    os.replace(path + ".part", path)


def pair(value):
    """A size for height and width, as network.toml writes it."""
    first, second = value if isinstance(value, (tuple, list)) else (value, value)
    return int(first) if first == second else [int(first), int(second)]


# Networks for which there is no attack here, whatever else is in them.
FOREIGN = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Embedding)

# What a loss on logits computes itself.
SOFTMAX = (
    "leave it out and give the logits, with loss=\"cross-entropy\": that is nll_loss of a log_softmax, with the same weights "
    "and gradients. A cross-entropy of a softmax is another loss, which is not known"
)


class Writer:
    """Turns the graph that torch.fx traces into layers."""

    def __init__(self, model, shape):
        self.model, self.shape = model, shape
        self.layers, self.names, self.used, self.padded = [], {}, set(), {}

    def spec(self):
        for path, module in self.model.named_modules():
            if isinstance(module, FOREIGN):
                raise Unsupported(
                    f"`{path}` is a {type(module).__name__}: recurrent networks, attention and embeddings are not known\n"
                    "  what to do: no attack here can be tried on this model, and a report on another one would say nothing of it; "
                    "docs/networks.md lists the layers that are known"
                )
        try:
            tracer = torch.fx.Tracer()
            tracer.record_stack_traces = True  # where in forward(), for what is refused
            traced = torch.fx.GraphModule(self.model, tracer.trace(self.model))
            ShapeProp(traced).propagate(torch.zeros(2, *self.shape).to(next(self.model.parameters())))
            graph = traced.graph
        except Exception as error:
            raise Unsupported(
                f"the model cannot be traced: {error}\n"
                "  what to do: torch.fx follows every operation once, so that the way through the model must not depend "
                "on the values of a sample; move such branches out of forward(), or write network.toml by hand"
            ) from error
        for node in graph.nodes:
            self.node(node)
        rows = ",\n".join("    " + inline(layer) for layer in self.layers)
        return f"input = {inline(list(self.shape))}\nlayers = [\n{rows},\n]\n"

    def node(self, node):
        if node.op == "placeholder":
            if self.names:
                self.refuse(node, "the model takes more than one input", "wrap it so that forward() takes one tensor")
            self.names[node] = "input"
        elif node.op == "call_module":
            self.module(node, self.model.get_submodule(node.target))
        elif node.op in ("call_function", "call_method"):
            self.function(node)
        elif node.op == "get_attr":
            self.refuse(node, f"forward() uses `{node.target}` directly", "put it into a module such as nn.Linear")
        elif node.op == "output":
            last = self.layers[-1]["name"] if self.layers else None
            given = node.args[0]
            if not isinstance(given, torch.fx.Node) or self.names.get(given) != last:
                self.refuse(node, "the output is not what the last layer gives", "return one tensor, the model's outputs")

    def refuse(self, node, problem, hint):
        lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
        # The innermost line that is neither PyTorch's nor of this script.
        others = (os.path.dirname(torch.__file__), os.path.abspath(__file__))
        own = [place for place, line in enumerate(lines) if line.startswith("File ") and not any(o in line for o in others)]
        where = f"\n  where: {lines[own[-1]]}: {''.join(lines[own[-1] + 1 : own[-1] + 2])}" if own else ""
        raise Unsupported(f"{node.name}: {problem}{where}\n  what to do: {hint}")

    def read(self, node, argument):
        if argument in self.padded and not self.padding_taken:
            self.refuse(node, "it reads an image with zeros put around it", "pad in front of convolutions alone")
        if not isinstance(argument, torch.fx.Node) or self.names.get(argument) is None:
            self.refuse(node, "it computes with something that is no layer's output", "use layers alone in forward()")
        return self.names[argument]

    def add(self, node, kind, inputs, name=None, **settings):
        name = name or node.name
        while name in self.used or name == "input":
            name += "_"
        self.used.add(name)
        layer = {"name": name, "inputs": [self.read(node, item) for item in inputs], "kind": kind}
        previous = self.layers[-1]["name"] if self.layers else "input"
        if layer["inputs"] == [previous]:
            del layer["inputs"]
        self.layers.append({**layer, **settings})
        self.names[node] = name

    def module(self, node, module):
        x, path = node.args[:1], node.target
        weighted = next(module.parameters(recurse=False), None) is not None
        if weighted and path in self.used:
            self.refuse(node, f"`{path}` is used twice", "give each use a module of its own")
        if isinstance(module, nn.ZeroPad2d):
            return self.pad(node, x[0], module.padding)
        settings = self.settings(node, module)
        if settings is not None and settings["kind"] == "conv" and x[0] in self.padded:
            settings["padding"] = self.joined(node, module, x[0])
            self.padding_taken = True
        if settings is None:
            self.names[node] = self.read(node, x[0])
        else:
            self.add(node, settings.pop("kind"), x, path, **settings)
        self.padding_taken = False

    padding_taken = False

    def pad(self, node, source, around):
        """Zeros around an image, which the next convolution takes for its own: left, right, top, bottom."""
        self.names[node] = self.read(node, source)
        self.padded[node] = (source, tuple(around))

    def joined(self, node, m, argument):
        """The padding of a convolution with the zeros put around what it reads."""
        source, (left, right, top, bottom) = self.padded[argument]
        own = m.padding if not isinstance(m.padding, str) else None
        if own is None:
            self.refuse(node, "it pads twice", "pad once")
        height, width = source.meta["tensor_meta"].shape[-2:]
        around = [(top + own[0], bottom + own[0]), (left + own[1], right + own[1])]
        if all(before == after for before, after in around):
            return pair([before for before, _ in around])
        for axis, (size, (before, after)) in enumerate(zip((height, width), around)):
            reach = m.dilation[axis] * (m.kernel_size[axis] - 1) + 1
            total = max((-(-size // m.stride[axis]) - 1) * m.stride[axis] + reach - size, 0)
            if (before, after) != (total // 2, total - total // 2):
                self.refuse(node, f"it pads by {around}", 'pad as much before as after, or as "same" does')
        return "same"

    def settings(self, node, m):
        """What network.toml says of a module; None for one that does nothing."""
        bias = getattr(m, "bias", None) is not None
        if isinstance(m, nn.Identity):
            return None
        if isinstance(m, nn.Linear):
            return {"kind": "linear", "outputs": m.out_features, "bias": bias}
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            if m.padding_mode != "zeros":
                self.refuse(node, f"`{node.target}` pads by {m.padding_mode}", "pad with zeros")
            common = {"kernel": pair(m.kernel_size), "stride": pair(m.stride), "dilation": pair(m.dilation)}
            common.update(groups=m.groups, bias=bias)
            if isinstance(m, nn.ConvTranspose2d):
                padding = {"padding": pair(m.padding), "output_padding": pair(m.output_padding)}
                return {"kind": "conv-transpose", "outputs": m.out_channels, **common, **padding}
            padding = {"same": "same", "valid": 0}.get(m.padding) if isinstance(m.padding, str) else pair(m.padding)
            return {"kind": "conv", "outputs": m.out_channels, "padding": padding, **common}
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            if not m.track_running_stats or m.momentum is None:
                self.refuse(node, f"`{node.target}` keeps no running average", "use track_running_stats=True and a momentum")
            return {"kind": "batch-norm", "eps": float(m.eps), "momentum": float(m.momentum), "affine": m.affine}
        if isinstance(m, nn.PReLU):
            return {"kind": "prelu", "slopes": m.num_parameters}
        if isinstance(m, (nn.Dropout, nn.Dropout2d)):
            return {"kind": "dropout", "p": float(m.p)}
        if isinstance(m, nn.Flatten):
            if m.start_dim != 1 or m.end_dim not in (-1, 3):
                self.refuse(node, "it flattens other axes than a sample's", "use nn.Flatten()")
            return {"kind": "flatten"}
        if isinstance(m, nn.MaxPool2d):
            if m.ceil_mode or m.dilation not in (1, (1, 1)) or m.return_indices:
                self.refuse(node, f"`{node.target}` uses ceil_mode, dilation or indices", "pool without them")
            return {"kind": "max-pool", "kernel": pair(m.kernel_size), "stride": pair(m.stride), "padding": pair(m.padding)}
        if isinstance(m, nn.AvgPool2d):
            if m.ceil_mode or m.divisor_override or (not m.count_include_pad and pair(m.padding) != 0):
                self.refuse(node, f"`{node.target}` averages in a way that is not known", "use count_include_pad alone")
            return {"kind": "avg-pool", "kernel": pair(m.kernel_size), "stride": pair(m.stride), "padding": pair(m.padding)}
        if isinstance(m, nn.AdaptiveAvgPool2d):
            return {"kind": "adaptive-avg-pool", "output": pair(m.output_size)}
        if isinstance(m, nn.Upsample):
            return self.upsampling(node, m.mode, m.scale_factor)
        function = self.activation(m)
        if function is None:
            hint = (
                "docs/networks.md lists the layers that are known. A model trained with one of them in its place can be audited; "
                "what comes of that says nothing of this one"
            )
            hint = SOFTMAX if isinstance(m, (nn.Softmax, nn.LogSoftmax)) else hint
            self.refuse(node, f"`{node.target}` is a {type(m).__name__}, which is not known", hint)
        return {"kind": "activation", "function": function}

    def upsampling(self, node, mode, scale):
        scale = scale if isinstance(scale, (tuple, list)) else (scale, scale)
        if mode != "nearest" or any(side is None or side != int(side) for side in scale):
            self.refuse(node, "it interpolates between pixels", 'upsample by whole factors with mode="nearest"')
        return {"kind": "upsample", "factor": pair(scale)}

    @staticmethod
    def activation(m):
        if isinstance(m, nn.LeakyReLU):
            return f"leaky-relu({float(m.negative_slope)!r})"
        if isinstance(m, nn.Softplus) and m.threshold >= 15:
            return f"softplus({float(m.beta)!r})"
        names = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh", nn.SiLU: "silu"}
        return names.get(type(m))

    def function(self, node):
        target, args, named = node.target, node.args, node.kwargs
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        get = lambda place, key, default: named.get(key, args[place] if len(args) > place else default)
        plain = {"relu": "relu", "relu_": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "silu", "relu6": "relu6"}
        if name in plain:
            self.add(node, "activation", args[:1], function=plain[name])
        elif name == "leaky_relu":
            self.add(node, "activation", args[:1], function=f"leaky-relu({float(get(1, 'negative_slope', 0.01))!r})")
        elif name == "softplus":
            if get(2, "threshold", 20) < 15:
                self.refuse(node, "its threshold is low enough to be seen", "leave threshold as it is")
            self.add(node, "activation", args[:1], function=f"softplus({float(get(1, 'beta', 1))!r})")
        elif target in (operator.add, operator.iadd) or name in ("add", "add_"):
            if named.get("alpha", 1) != 1:
                self.refuse(node, "it adds a multiple (alpha)", "add the tensors themselves")
            self.add(node, "add", args[:2])
        elif name in ("cat", "concat"):
            if get(1, "dim", 0) not in (1, -3):
                self.refuse(node, "it joins along another axis than the channels", "use torch.cat(..., dim=1)")
            self.add(node, "concat", args[0])
        elif name == "flatten":
            if get(1, "start_dim", 0) != 1:
                self.refuse(node, "it flattens the batch too", "use torch.flatten(x, 1)")
            self.add(node, "flatten", args[:1])
        elif name in ("size", "getattr", "getitem") and (name != "getitem" or self.names.get(args[0]) is None):
            self.names[node] = None  # sizes of a batch: only reshaping may use them
        elif name in ("view", "reshape"):
            sides = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
            if len(sides) != 2:
                self.refuse(node, "it reshapes to something else than rows", "use nn.Flatten()")
            self.add(node, "flatten", args[:1])
        elif name in ("max_pool2d", "boolean_dispatch", "_max_pool2d"):
            kernel = get(1, "kernel_size", None)
            if get(4, "dilation", 1) not in (1, (1, 1), [1, 1]) or get(5, "ceil_mode", False) or get(6, "return_indices", False):
                self.refuse(node, "it pools with dilation, ceil_mode or indices", "pool without them")
            stride, padding = get(2, "stride", None) or kernel, get(3, "padding", 0)
            self.add(node, "max-pool", args[:1], kernel=pair(kernel), stride=pair(stride), padding=pair(padding))
        elif name == "avg_pool2d":
            kernel = get(1, "kernel_size", None)
            if get(4, "ceil_mode", False) or not get(5, "count_include_pad", True) or get(6, "divisor_override", None):
                self.refuse(node, "it averages in a way that is not known", "use count_include_pad alone")
            stride, padding = get(2, "stride", None) or kernel, get(3, "padding", 0)
            self.add(node, "avg-pool", args[:1], kernel=pair(kernel), stride=pair(stride), padding=pair(padding))
        elif name == "adaptive_avg_pool2d":
            self.add(node, "adaptive-avg-pool", args[:1], output=pair(get(1, "output_size", 1)))
        elif name == "mean":
            axes = get(1, "dim", ())
            if sorted(axis % 4 for axis in (axes if isinstance(axes, (tuple, list)) else [axes])) != [2, 3]:
                self.refuse(node, "it averages over other axes than height and width", "use nn.AdaptiveAvgPool2d(1)")
            self.add(node, "adaptive-avg-pool", args[:1], output=1)
            if not get(2, "keepdim", False):
                pooled = self.names[node]
                self.layers.append({"name": pooled + ".rows", "kind": "flatten"})
                self.names[node] = pooled + ".rows"
        elif name == "interpolate":
            settings = self.upsampling(node, get(3, "mode", "nearest"), get(2, "scale_factor", None))
            self.add(node, settings.pop("kind"), args[:1], **settings)
        elif name in ("dropout", "dropout2d"):
            self.add(node, "dropout", args[:1], p=float(get(1, "p", 0.5)))
        elif name == "pad":
            around = tuple(get(1, "pad", ()))
            if len(around) != 4 or get(2, "mode", "constant") != "constant" or get(3, "value", 0) not in (0, None):
                self.refuse(node, "it pads in a way that no convolution does", "pad height and width with zeros")
            self.pad(node, args[0], around)
        elif name in ("contiguous", "identity"):
            self.names[node] = self.read(node, args[0])
        else:
            hint = "use a module or function that is known (docs/networks.md lists the layers)"
            hint = SOFTMAX if name in ("softmax", "log_softmax") else hint
            self.refuse(node, f"it calls `{name}`, which is not known", hint)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="module:function that returns the model")
    parser.add_argument("--weights", help="state dict to load into it")
    parser.add_argument("--inputs", required=True, help="a tensor, or a dictionary with x and y, saved by torch.save: a batch as the model is fed with it")
    parser.add_argument("--out", required=True, help="the folder to write")
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--range", type=float, nargs=2, default=(0.0, 1.0))
    parser.add_argument("--loss", choices=LOSSES, default="cross-entropy")
    parser.add_argument("--reduction", choices=("mean", "sum"), default="mean")
    parser.add_argument("--records", type=int, help="samples it was trained on")
    parser.add_argument("--before", help="an earlier checkpoint")
    parser.add_argument("--gradient", help="a step's gradient, or an update with --local-steps and --lr")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--local-steps", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--mode", choices=("train", "eval"))
    args = vars(parser.parse_args())
    sys.path.insert(0, os.getcwd())
    module, _, function = args.pop("model").partition(":")
    model = getattr(importlib.import_module(module), function or "make_model")()
    weights = args.pop("weights")
    if weights:
        model.load_state_dict(state(weights))
    else:
        print("note: no --weights: the model is exported as the function makes it")
    batch = torch.load(args.pop("inputs"), map_location="cpu", weights_only=True)
    x, y = (batch["x"], batch.get("y")) if isinstance(batch, dict) else (batch, None)
    try:
        export(model, args.pop("out"), x, y, **args)
    except Unsupported as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
