"""Options that several commands share: data, model, prompts, methods, output."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from clip_tca.core.checks import not_among
from clip_tca.core.remote import Location, locate
from clip_tca.data.registry import BENCHMARKS
from clip_tca.results.schema import FORMATS, METRICS, check_metrics

DATASETS = (*BENCHMARKS, "folder", "demo", "synthetic")
SUFFIXES = {".json": "json", ".csv": "csv", ".md": "markdown", ".tex": "latex", ".txt": "table"}  # with their formats

COLUMNS = ("image_column", "label_column", "domain_column")
DATA = ("data_dir", "hub_id", "revision", *COLUMNS, "domains", "corruptions", "severities", "corrupt")


def dataset(text: str) -> str:
    """A data set's name, or a file of stored embeddings."""
    if text in DATASETS or text.endswith(".safetensors"):
        return text
    raise argparse.ArgumentTypeError(not_among(text, [*DATASETS, "FILE.safetensors (stored embeddings)"]))


def embeddings(text: str) -> str:
    """A data set's name, or a file or folder of embeddings made elsewhere."""
    return text if Path(text).suffix or Path(text).is_dir() else dataset(text)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; a whole number of at least 1 is needed")
    return int(text)


def number(text: str) -> float:
    """A positive number."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r}; a positive number is needed, such as 100")


def count_or_auto(text: str) -> str:
    """``auto``, or a whole number of at least 1."""
    if text != "auto" and (not text.isdecimal() or int(text) < 1):
        raise argparse.ArgumentTypeError(f"{text!r}; auto or a whole number of at least 1 is needed")
    return text


def share(text: str) -> float:
    """A number from 0 to 1."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}; a number between 0 and 1 is needed, such as 0.05")


def add_data(command: argparse.ArgumentParser, required: bool = True, foreign: bool = False) -> None:
    """Which images; ``foreign`` allows embeddings made elsewhere as well."""
    add = command.add_argument_group("data").add_argument
    stored = "FILE.safetensors; or with --text a file or folder of embeddings" if foreign else "FILE.safetensors"
    kind = embeddings if foreign else dataset
    add("--dataset", required=required, type=kind, help=f"{', '.join(DATASETS)} or {stored}")
    folder = "folder of the images, in any public layout (default: where data get puts it)"
    add("--data-dir", metavar="DIR", help=folder)
    add("--hub-id", metavar="ID", help="data set on the hub, a saved data set, or Parquet")
    add("--revision", help="commit or tag on the hub")
    for what in ("image", "label", "domain"):
        add(f"--{what}-column", metavar="NAME", help=f"column with the {what}s of a hub data set")
    add("--domain", dest="domains", action="append", metavar="NAME", help="only this domain; repeatable")
    corruptions = "only this corruption of cifar10-c, …; repeatable (default: the 15 common ones)"
    add("--corruption", dest="corruptions", action="append", metavar="NAME", help=corruptions)
    levels = "severity of the corruption; repeatable (default: 5)"
    add("--severity", dest="severities", action="append", type=positive, metavar="1..5", help=levels)
    add("--corrupt", metavar="NAME:SEVERITY", help="corrupt the images first, such as gaussian_noise:3")
    if foreign:
        add = command.add_argument_group("embeddings made elsewhere (--dataset FILE|DIR)").add_argument
        add("--text", metavar="FILE", help="text embeddings: (classes, d) or (templates, classes, d)")
        add("--labels", metavar="FILE", help="true classes: .npy, .pt or text; for scoring only")
        add("--scale", type=number, metavar="S", help="logit scale (default: that of the text file, else 100)")
        add("--column", metavar="NAME", help="array, tensor or list column with the embeddings")
        add("--text-column", metavar="NAME", help="array or tensor with the text embeddings")


def add_model(command: argparse.ArgumentParser) -> None:
    """Which encoder, on which device, in which precision."""
    add = command.add_argument_group("model").add_argument
    model = (
        "open_clip model, hf-hub:OWNER/NAME, local-dir:DIR, transformers:OWNER/NAME|DIR or demo (default: "
        "ViT-B-16-quickgelu); a classifier with its own head: torchvision:NAME, timm:NAME"
    )
    add("--model", help=model)
    add("--pretrained", metavar="TAG|FILE", help="its weights (default: openai, or the library's)")
    add("--device", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    add("--precision", help="auto, fp32, fp16 or bf16 (default: auto: fp16 on CUDA, else fp32)")
    add("--skip-bad", action="store_true", default=None, help="continue without images that can't be read")
    add("--no-cache", action="store_true", help="neither read nor write the embedding store")
    workers = "processes that decode images, threads on a CPU (default: cores, at most 8)"
    add("--workers", type=int, metavar="N", help=workers)


def add_prompts(command: argparse.ArgumentParser, class_names: bool = True) -> None:
    """Which prompts; the command may say by itself which ``class_names`` there are."""
    add = command.add_argument_group("prompts").add_argument
    prompts = (
        "single, watt, clip80; clip (OpenAI's) or coop if the data set has them; a file of templates; a .json file of "
        "descriptions of each class (default: single)"
    )
    add("--prompts", metavar="NAME|FILE", help=prompts)
    names = (
        "default: clean; raw with --protocol watt; for a model with its own head, a file with a name for each output"
    )
    if class_names:
        add("--class-names", metavar="raw|clean|FILE", help=names)


def add_quiet(command: argparse.ArgumentParser) -> None:
    """Whether progress is shown."""
    quiet = "show no progress; results and warnings are still printed"
    command.add_argument("--quiet", "-q", action="store_true", help=quiet)


def add_method(group: argparse._ArgumentGroup) -> None:
    """Options of the adapters."""
    add = group.add_argument
    k = "images that linear-tca aligns to, or the k of another method (default: auto)"
    add("--k", type=count_or_auto, metavar="N|auto", help=k)
    shares = (
        "how frequent the classes are: a file with a number for each class (lines of NUMBER or NAME,NUMBER, or JSON), "
        "or estimated (default), uniform, predicted or global; eval also takes oracle, which uses true labels"
    )
    add("--shares", metavar="FILE|NAME", help=shares)
    add("--solver", help="monge, coral, gradient or mean")
    add("--set", action="append", type=assignment, metavar="NAME=VALUE", help="any option of a method")


def assignment(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r}; write NAME=VALUE, such as steps=50")
    return name.strip().replace("-", "_"), value.strip()


def parse_value(text: str) -> Any:
    """``3``, ``0.5``, ``true``, ``none`` or a word, as ``--set NAME=VALUE`` gives it."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def method_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options of methods that were given, as values."""
    values = given(options, "k", "shares", "solver") | dict(options.set or [])
    parsed = {name: parse_value(str(value)) for name, value in values.items()}
    if isinstance(parsed.get("shares"), str) and Path(parsed["shares"]).suffix:
        parsed["shares"] = read_shares(locate(parsed["shares"]))
    return parsed


def read_shares(path: Location) -> list[float] | dict[str, float]:
    """Class shares from a file: JSON, or a line for each class with a number, or with its name and a number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            shares: list[float] | dict[str, float] = json.loads(text)
            return shares
        lines = [re.split(r"[,;\t]", line) for line in text.splitlines() if line.strip()]
        if all(len(line) == 1 for line in lines):
            return [float(number) for (number,) in lines]
        return {name.strip(): float(number) for name, number in lines}
    except FileNotFoundError:
        raise ValueError(f"shares: {path}: no such file; give a file, or estimated, uniform or predicted") from None
    except (OSError, ValueError) as error:
        raise ValueError(
            f"shares: {path} can't be read ({error}); write a number for each class on its own line, or NAME,NUMBER"
        ) from None


def add_output(command: argparse.ArgumentParser) -> None:
    """Format and file of the result, and which measures its table shows."""
    add = command.add_argument_group("output").add_argument
    add("--format", choices=FORMATS, help="default: table; with --output, the one that fits the file name")
    add("--output", "-o", metavar="FILE", help=f"also write to this file: {', '.join(SUFFIXES)}")
    add("--overwrite", action="store_true", help="replace the file if it exists")
    columns = (
        "measures to show: one by domain, several as averages; repeatable or separated by commas: "
        f"{', '.join(METRICS)} (default: accuracy)"
    )
    add("--metric", action="extend", type=metrics, metavar="NAME", help=columns)


def metrics(text: str) -> list[str]:
    """Names of measures between commas."""
    try:
        return check_metrics(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("metric: ")) from None


def inputs(options: argparse.Namespace) -> dict[str, Any]:
    """The options of data, model and prompts that were given, for :class:`clip_tca.evaluation.inputs.Inputs`."""
    from clip_tca.evaluation.inputs import Inputs

    names = vars(options).keys() & {field.name for field in fields(Inputs)} - {"dataset", "ray"}
    return given(options, *names) | {"cache": not options.no_cache, "progress": not options.quiet}


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the options ``names`` that were given."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def check_output(
    output: str | Path | None, option: str = "output", suffixes: Sequence[str] = (), overwrite: bool = True
) -> None:
    """Raise ValueError, before any work, if a result could not be written to ``output``."""
    if output is None:
        return
    path = locate(str(output))
    if suffixes and (path.is_file() or not path.exists()) and path.suffix.lower() not in suffixes:
        raise ValueError(f"{option}: {path}; its name must end with {', '.join(suffixes)}")
    if not overwrite and path.is_file():
        raise ValueError(f"{option}: {path} exists; name another file, or add --overwrite")
    if not isinstance(path, Path):
        path.exists()  # asks the store, which may not know us
    elif path.is_dir():
        raise ValueError(f"{option}: {path} is a folder; name a file in it")
    elif path.is_file() or not path.exists():  # and no pipe or device
        try:
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{option}: {path} can't be written ({why}); name a file in a writable folder") from None


def check_result(options: argparse.Namespace) -> None:
    """The same for a result that :func:`deliver` writes."""
    check_output(options.output, "output", () if options.format else tuple(SUFFIXES), options.overwrite)


def deliver(options: argparse.Namespace, text: Callable[[str], str]) -> None:
    """Print the result in the requested format; with ``--output`` write that to the file, and print the table."""
    from clip_tca.core.files import write_text

    if options.output is None:
        sys.stdout.write(text(options.format or "table"))
        return
    path = locate(options.output)
    write_text(path, text(options.format or SUFFIXES.get(path.suffix.lower(), "table")))
    sys.stdout.write(f"{text('table')}\nwritten: {path}\n")
