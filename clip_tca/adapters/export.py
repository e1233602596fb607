"""Export an adapted classifier for other runtimes, as an ONNX model or as the tensors of a ``torch.nn.Linear``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from clip_tca.adapters.base import Adapter
from clip_tca.classifier import LinearClassifier
from clip_tca.core.checks import install
from clip_tca.core.files import atomic, write_tensors
from clip_tca.core.remote import Location

SUFFIXES = (".onnx", ".safetensors")


def export(adapter: Adapter, path: Location) -> None:
    """Write the classifier of a fitted adapter to an ``.onnx`` or ``.safetensors`` file.

    Raises:
        ValueError: If the file has another suffix, or the package onnx is missing.
    """
    head = adapter.folded()
    if path.suffix.lower() == ".onnx":
        content = onnx_model(adapter).SerializeToString()
        with atomic(path) as part:
            part.write_bytes(content)
    elif path.suffix.lower() == ".safetensors":
        tensors = {name: getattr(head, name).float().contiguous() for name in ("weight", "bias")}
        beside = {} if adapter._head is None else {"embeddings": str(adapter.n_features_in_)}  # then come logits
        write_tensors(path, tensors, {"normalize": str(adapter._of_unit_length).lower(), **beside, **_names(head)})
    else:
        raise ValueError(f"output: {path}; allowed are names that end with {' or '.join(SUFFIXES)}")


def _names(head: LinearClassifier) -> dict[str, str]:
    """The class names as metadata, if there are any."""
    return {} if head.classes is None else {"classes": json.dumps(head.classes)}


def onnx_model(adapter: Adapter) -> Any:
    """``embeddings`` (n, d) → ``logits`` (n, c) and ``labels`` (n,); scales to unit length if TCA does.

    What was fitted with logits of another encoder takes them as ``scores`` (n, c) beside the embeddings.
    """
    head, dim, paired = adapter.folded(), adapter.n_features_in_, adapter._head is not None
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise ValueError(f"onnx is not installed; {install('onnx')}") from None
    classes = head.n_classes
    constants: dict[str, np.ndarray] = {
        "weight": head.weight.cpu().numpy().astype(np.float32),
        "bias": head.bias.cpu().numpy().astype(np.float32),
        "tiny": np.array(1e-12, np.float32),
        "axes": np.array([1], np.int64),
    }
    scaling = [
        helper.make_node("ReduceL2", ["embeddings", "axes"], ["length"], keepdims=1),
        helper.make_node("Max", ["length", "tiny"], ["safe"]),
        helper.make_node("Div", ["embeddings", "safe"], ["unit"]),
    ]
    rows = "unit" if adapter._of_unit_length else "embeddings"
    beside = [helper.make_node("Concat", [rows, "scores"], ["rows"], axis=1)] if paired else []
    nodes = [
        *(scaling if adapter._of_unit_length else []),
        *beside,
        helper.make_node("Gemm", ["rows" if paired else rows, "weight", "bias"], ["logits"], transB=1),
        helper.make_node("ArgMax", ["logits"], ["labels"], axis=1, keepdims=0),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "clip-tca",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
            for name, width in [("embeddings", dim), ("scores", classes)][: 1 + paired]
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", classes]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["n"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="clip-tca", ir_version=9
    )
    helper.set_model_props(model, _names(head))
    checker.check_model(model)
    return model
