from __future__ import annotations

import pytest
import torch

from clip_tca import LinearTCA
from clip_tca.adapters.solvers import EXACT, SOLVERS
from clip_tca.adapters.statistics import covariance
from tests.conftest import Shifted


@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("shrinkage", [0.0, 0.2, "auto"])
def test_w_solves_the_equation_on_its_covariances(solver, shrinkage, shifted):
    tca = LinearTCA(shifted.g, solver=solver, shrinkage=shrinkage).fit(shifted.z)
    moved = tca.W_.T @ tca.covariance_ @ tca.W_
    torch.testing.assert_close(moved, tca.pseudo_source_covariance_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", EXACT)
def test_adapted_embeddings_have_the_pseudo_source_s_mean_and_covariance(solver, shifted):
    tca = LinearTCA(shifted.g, solver=solver, shrinkage=0.0).fit(shifted.z)
    adapted = tca.transform(shifted.z.double())
    torch.testing.assert_close(adapted.mean(dim=0), tca.pseudo_source_mean_, rtol=0, atol=1e-6)
    torch.testing.assert_close(covariance(adapted), tca.pseudo_source_covariance_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_whole_test_set_as_pseudo_source_changes_nothing(solver, shifted):
    tca = LinearTCA(shifted.g, shares="global", k=len(shifted.z), solver=solver).fit(shifted.z)
    torch.testing.assert_close(tca.W_, torch.eye(24, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(tca.transform(shifted.z), shifted.z, rtol=0, atol=1e-6)


def test_transform_is_the_paper_s_equation(shifted):
    tca = LinearTCA(shifted.g).fit(shifted.z)
    expected = (shifted.z.double() - tca.mean_) @ tca.W_ + tca.pseudo_source_mean_
    torch.testing.assert_close(tca.transform(shifted.z.double()), expected, rtol=0, atol=1e-6)


def test_mean_only_shifts(shifted):
    tca = LinearTCA(shifted.g, solver="mean").fit(shifted.z)
    shift = (tca.pseudo_source_mean_ - tca.mean_).float()
    torch.testing.assert_close(tca.transform(shifted.z), shifted.z + shift, rtol=0, atol=1e-6)


def test_raw_embeddings_can_be_left_as_they_are(shifted):
    long = 7 * shifted.z
    assert float(LinearTCA(shifted.g, normalize=False).fit(long).mean_.norm()) == pytest.approx(
        7 * float(LinearTCA(shifted.g).fit(long).mean_.norm()), rel=1e-6
    )


def test_the_published_settings_are_the_published_settings(shifted):
    paper, reference = LinearTCA.paper(shifted.g), LinearTCA.reference(shifted.g, k=20)
    assert (paper.shares, paper.uncertainty, paper.solver, paper.steps, paper.lr) == (
        "global",
        "distance",
        "gradient",
        20,
        1e-3,
    )
    assert (reference.shares, reference.uncertainty, reference.solver, reference.k) == (
        "oracle",
        "entropy",
        "gradient",
        20,
    )


def test_adapting_helps_where_the_paper_s_premise_holds():
    data = Shifted(classes=6, dim=64, images=240)
    before = (data.g.predict(data.z) == data.y).double().mean()
    after = (LinearTCA(data.g).fit(data.z).predict(data.z) == data.y).double().mean()
    assert after > before + 0.02
