"""Embeddings are taken as other libraries hold them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import sparse

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.core.conversion import as_array, as_number, is_batches

Z = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
LISTS, TENSOR = Z.tolist(), torch.from_numpy(Z)
LIST = pa.list_(pa.float32())
G = ZeroShotClassifier(np.eye(6)[:3] + 0.1)


def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"emb": LISTS, "other": ["x"] * len(LISTS)})


class ByProtocol:
    """A matrix of a library that nobody here has heard of."""

    def __init__(self, protocol: str) -> None:
        self.methods = (protocol, "__dlpack_device__") if protocol == "__dlpack__" else (protocol,)

    def __getattr__(self, name: str) -> Any:
        if name == "methods" or name not in self.methods:
            raise AttributeError(name)
        return getattr(TENSOR if "dlpack" in name else Z, name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return Z


FORMS = {
    "an array": lambda: Z,
    "a read-only memory map's view": lambda: np.frombuffer(Z.tobytes(), np.float32).reshape(Z.shape),
    "a list of lists": lambda: LISTS,
    "a list of arrays": lambda: list(Z),
    "a tuple with one array": lambda: (Z,),
    "a pandas column of lists": lambda: pd.Series(LISTS),
    "a pandas column of arrays": lambda: pd.DataFrame({"emb": list(Z)})["emb"],
    "a pandas column of Arrow lists": lambda: pd.Series(LISTS, dtype=pd.ArrowDtype(LIST)),
    "a pandas table of numbers": lambda: pd.DataFrame(Z),
    "a pandas table of one column": lambda: pd.DataFrame({"emb": list(Z)}),
    "a polars column of lists": lambda: pl.Series(LISTS, dtype=pl.List(pl.Float32)),
    "a polars column of arrays": lambda: pl.Series(LISTS, dtype=pl.Array(pl.Float32, 6)),
    "a polars table of numbers": lambda: pl.DataFrame(Z),
    "a pyarrow list array": lambda: pa.array(LISTS, LIST),
    "a pyarrow array of fixed-size lists": lambda: pa.array(LISTS, pa.list_(pa.float32(), 6)),
    "a pyarrow column in chunks": lambda: pa.chunked_array([pa.array(LISTS[:7], LIST), pa.array(LISTS[7:], LIST)]),
    "a column of datasets": lambda: dataset()["emb"],
    "a column of datasets in NumPy's format": lambda: dataset().with_format("numpy")["emb"],
    "rows of datasets": lambda: dataset()[:]["emb"],
    "something with __array__": lambda: ByProtocol("__array__"),
}
TENSORS = {
    "a tensor": lambda: TENSOR,
    "a parameter": lambda: torch.nn.Parameter(TENSOR.clone()),
    "a list of tensors": lambda: list(TENSOR),
    "a batch of a TensorDataset": lambda: [TENSOR],
    "a column of datasets in torch's format": lambda: dataset().with_format("torch")["emb"],
    "transformers 5: pooler_output": lambda: SimpleNamespace(last_hidden_state=None, pooler_output=TENSOR),
    "CLIPModel: image_embeds": lambda: SimpleNamespace(text_embeds=None, image_embeds=TENSOR, pooler_output=1),
    "open_clip with output_dict": lambda: {"image_features": TENSOR, "text_features": 1, "logit_scale": 1},
    "something with __dlpack__": lambda: ByProtocol("__dlpack__"),
}


@pytest.mark.parametrize("form", [*FORMS, *TENSORS])
def test_embeddings_are_taken_as_they_come(form):
    z = {**FORMS, **TENSORS}[form]()
    expected, adapter = ConditionalTCA(G).fit(TENSOR), ConditionalTCA(G).fit(z)
    assert adapter.n_seen_ == len(Z)
    for result, wanted in (
        (adapter.predict(z), expected.predict(TENSOR)),
        (adapter.transform(z), expected.transform(TENSOR)),
        (adapter.partial_fit(z).logits(z), expected.partial_fit(TENSOR).logits(TENSOR)),
        (G.predict(z), G.predict(TENSOR)),
    ):
        assert isinstance(result, torch.Tensor if form in TENSORS else np.ndarray)
        np.testing.assert_array_equal(np.asarray(result), wanted.numpy())


def test_dtypes_and_the_tower_that_is_asked_for():
    assert as_array(pd.Series(list(Z.astype(np.float64)))).dtype == np.float64
    assert as_array(pd.DataFrame(Z).astype(object)).dtype == np.float64
    assert as_array(LISTS).dtype == np.float32  # Python's numbers have no dtype, and came from float32 as a rule
    output = {"image_embeds": TENSOR, "text_embeds": TENSOR[:3]}
    assert torch.equal(ZeroShotClassifier(output).text, ZeroShotClassifier(TENSOR[:3]).text)
    assert torch.equal(as_array(output), TENSOR)


@pytest.mark.parametrize(
    ("z", "word"),
    [
        ("z.npy", "np.load"),
        (["a.jpg"], "clip_tca.encode"),
        (Z.astype(int), "z.astype('float32')"),
        (TENSOR.long(), "z.float()"),
        (pa.table({"emb": LISTS}), "got Table; pass of a table z['NAME']"),
        (dataset(), "got Dataset; pass of a table"),
        (pd.DataFrame({"emb": list(Z), "name": "x"}), "choose the column"),
        (pd.Series(["a", "bcd"]), "got str"),
        (pd.Series([LISTS[0], None, LISTS[1]]), "row 1 has 0 numbers, row 0 has 6"),
        (pl.Series([LISTS[0], None]), "row 1"),
        ([[1.0, 2.0], [1.0]], "row 1 has 1 numbers"),
        ([TENSOR[0], TENSOR[0, :2]], "row 1 has 2 numbers"),
        ((TENSOR, TENSOR), "got shape (2, 40, 6)"),
        ({"last_hidden_state": TENSOR}, "got dict"),
        (sparse.csr_array(Z), "z.toarray()"),
        (sparse.dok_array(Z), "got dok_array"),
        (iter([TENSOR]), "got list_iterator"),
        (None, "got NoneType"),
        (LISTS[0], "z[None]"),
        ([], "got shape (0,)"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_anything_else_is_refused_in_one_line(z, word):
    with pytest.raises((TypeError, ValueError), match=r"^embeddings: .*(;|got)") as caught:
        LinearTCA(G).fit(Z).transform(z)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("z", "batches"),
    [
        (TENSOR, False), (LISTS, False), (list(TENSOR), False), ([0.1, 0.2], False), (dataset()["emb"], False),
        (pd.Series(LISTS), False), (pa.table({"emb": LISTS}), False), ({"image_embeds": TENSOR}, False), ("z", False),
        (TENSOR.split(8), True), ([Z, Z], True), (iter([Z]), True), ([{"image_embeds": TENSOR}] * 2, True),
        (torch.utils.data.DataLoader(torch.utils.data.TensorDataset(TENSOR), 8), True), ([], True),
        ([pa.array(LISTS, LIST)] * 2, True), ([pd.Series(LISTS)] * 2, True),
    ],
)  # fmt: skip
def test_a_matrix_is_told_from_batches_of_one(z, batches):
    assert is_batches(z) == batches
    if batches and z != []:
        assert LinearTCA(G).fit(z).n_seen_ in (len(Z), 2 * len(Z))


@pytest.mark.parametrize(
    "value",
    [
        14.5, np.float32(14.5), np.array([14.5]), torch.tensor(14.5), torch.tensor([14.5], dtype=torch.float16),
        torch.nn.Parameter(torch.tensor(14.5)), torch.tensor(14.5, requires_grad=True) * 1, np.int64(14) + 0.5,
    ],
)  # fmt: skip
def test_a_number_may_be_a_tensor_or_a_parameter(value):
    assert as_number("scale", value) == 14.5
    assert ZeroShotClassifier(TENSOR[:3], scale=value, bias=value).bias.tolist() == [14.5] * 3


@pytest.mark.parametrize("value", [None, "100", True, float("nan"), float("inf"), torch.ones(3), [1.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^scale: .*; a number is needed"):
        ZeroShotClassifier(TENSOR[:3], scale=value)
