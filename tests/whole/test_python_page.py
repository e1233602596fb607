"""docs/python.md: its examples run as they stand, and what it counts is so."""

from __future__ import annotations

import re

import numpy as np
import open_clip
import pandas as pd
import pytest

import clip_tca
from tests.adapters.test_base import EXPECTED
from tests.conftest import ROOT
from tests.tiny_clip import MODEL
from tests.whole.test_house import imports

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.filterwarnings("ignore:.*SwigPy.* has no __module__:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*swigvarlink.* has no __module__:DeprecationWarning")
def test_the_examples_run_one_after_another(shifted, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    z, classes = shifted.z.numpy(), ["cat", "dog", "horse", "house"]
    names = {"z": z, "y": shifted.y.numpy(), "text": shifted.g.text, "names": classes, "queries": z[:7]}
    names |= {"table": pd.DataFrame({"embedding": list(z)})}
    for block in BLOCKS:
        if "from_prompts" in block:  # a model has embeddings of its own size
            apart = {**names, "model": open_clip.create_model(MODEL), "tokenizer": open_clip.get_tokenizer(MODEL)}
            exec(block, apart)  # noqa: S102 (our own page)
            assert apart["g"].classes == ("cat", "dog", "house")
        else:
            exec(block, names)  # noqa: S102 (our own page)
    assert set(names["table"]["label"]) <= set(classes)
    np.testing.assert_array_equal(names["tca"].predict(z), clip_tca.ConditionalTCA(names["g"]).fit(z).predict(z))
    assert names["same"].n_seen_ == len(z) + 32
    assert capsys.readouterr().out.strip() == str(names["pipeline"].score(z, names["y"]))
    assert set(names["search"].best_params_) == {"shares", "k"}
    assert names["found"].shape == (7, 10)
    moved = names["tca"].transform(z[:7], unit=True) @ names["tca"].transform(z, unit=True).T
    np.testing.assert_allclose(names["scores"], np.sort(moved, axis=1)[:, :-11:-1], rtol=1e-4)


def test_the_page_imports_public_names_only():
    public = {"clip_tca", *(f"clip_tca.{name}" for name in clip_tca.__all__)}
    used = {name for block in BLOCKS for name in imports(block) if name.split(".")[0] == "clip_tca"}
    assert used
    assert used <= public


def test_it_counts_the_checks_that_can_t_pass():
    assert f"all pass but {len(EXPECTED)}," in PAGE
