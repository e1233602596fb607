"""What tasks have saved of one fit merges to the fit of one process, to the bit, or is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.base import Adapter
from clip_tca.adapters.partial import merge_partials, save_partial
from clip_tca.adapters.state import load_adapter, read_state

ADAPTERS = [(LinearTCA, {}), (ConditionalTCA, {"memory": 64}), (MLPTCA, {"memory": 64, "steps": 3})]
STEP = 20


def observe(adapter: Adapter, z: torch.Tensor, segments: range) -> Adapter:
    """What a job does with its units: segments of ``STEP`` rows, by their numbers."""
    adapter.begin(z.device, z.dtype, segments.start * STEP)
    for number in segments:
        adapter.begin_segment(number * STEP)
        adapter.partial_fit(z[number * STEP : (number + 1) * STEP])
        adapter.end_segment(number)
    return adapter


def parts(make, options, shifted, folder: Path, tasks: int = 3) -> list[Path]:
    count = len(shifted.z) // STEP
    ends = [count * task // tasks for task in range(tasks + 1)]
    paths = []
    for task in range(tasks):
        part = observe(make(shifted.g, **options), shifted.z, range(ends[task], ends[task + 1]))
        paths.append(folder / f"{task}.safetensors")
        save_partial(part, paths[-1], (task + 1, tasks), "the data")
    return paths


@pytest.mark.parametrize(("make", "options"), ADAPTERS)
@pytest.mark.parametrize("tasks", [1, 3, 5])
def test_the_merged_fit_is_that_of_one_process_to_the_bit(make, options, tasks, shifted, tmp_path):
    one = observe(make(shifted.g, **options), shifted.z, range(len(shifted.z) // STEP))
    one.solve()
    merged = merge_partials(parts(make, options, shifted, tmp_path, tasks)[::-1])
    assert merged.n_seen_ == len(shifted.z)
    assert merged.solution.keys() == one.solution.keys()
    for name, tensor in one.solution.items():
        assert torch.equal(merged.solution[name], tensor), name
    merged.save(tmp_path / "merged.safetensors")
    loaded = load_adapter(tmp_path / "merged.safetensors", shifted.g, torch.device("cpu"))
    assert torch.equal(loaded.predict(shifted.z), one.predict(shifted.z))
    assert read_state(tmp_path / "merged.safetensors").classifier == shifted.g.fingerprint()


def test_a_task_without_rows_is_a_part_too(shifted, tmp_path):
    paths = parts(LinearTCA, {}, shifted, tmp_path, 2)
    empty = observe(LinearTCA(shifted.g), shifted.z, range(0))
    for number, path in enumerate(paths, 1):
        saved = observe(LinearTCA(shifted.g), shifted.z, range(6 * number - 6, 6 * number))
        save_partial(saved, path, (number, 3), "the data")
    save_partial(empty, tmp_path / "2.safetensors", (3, 3), "the data")
    assert merge_partials([*paths, tmp_path / "2.safetensors"]).n_seen_ == 240


def test_parts_that_do_not_belong_together_are_refused(shifted, tmp_path):
    paths = parts(LinearTCA, {}, shifted, tmp_path)
    with pytest.raises(ValueError, match="task 2 of 3 is missing; give what all tasks saved"):
        merge_partials([paths[0], paths[2]])
    with pytest.raises(ValueError, match=r"0\.safetensors: task 1 again; give each task once"):
        merge_partials([*paths, paths[0]])
    first = observe(LinearTCA(shifted.g), shifted.z, range(4))
    save_partial(first, paths[0], (1, 3), "other data")
    with pytest.raises(ValueError, match=r"1\.safetensors: of other embeddings, or one of 3 tasks"):
        merge_partials(paths)
    other = ZeroShotClassifier(shifted.g.text.roll(1, 0), shifted.g.scale)
    save_partial(observe(LinearTCA(other), shifted.z, range(4)), paths[0], (1, 3), "the data")
    with pytest.raises(ValueError, match="the class texts or their scale differ; both must have the same classifier"):
        merge_partials(paths)
    save_partial(observe(LinearTCA(shifted.g, k=3), shifted.z, range(4)), paths[0], (1, 3), "the data")
    with pytest.raises(ValueError, match="k is 3 here and 'auto' there; both must have the same options"):
        merge_partials(paths)
    save_partial(observe(ConditionalTCA(shifted.g), shifted.z, range(4)), paths[0], (1, 3), "the data")
    with pytest.raises(ValueError, match="a ConditionalTCA and a LinearTCA; both must be of one class"):
        merge_partials(paths)


def test_a_part_is_no_fit_and_a_fit_is_no_part(shifted, tmp_path):
    path = parts(LinearTCA, {}, shifted, tmp_path)[0]
    with pytest.raises(ValueError, match=re.escape(f"{path}: what one task has seen, not a whole fit; merge all")):
        load_adapter(path, shifted.g, torch.device("cpu"))
    LinearTCA(shifted.g).fit(shifted.z).save(path)
    with pytest.raises(ValueError, match=r"0\.safetensors: no part of a fit; merge takes what adapt --fit-only"):
        merge_partials([path])
