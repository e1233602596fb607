"""Commands on saved records (``compare``, ``report``, ``explain``) and on saved states (``explain``, ``export``)."""

from __future__ import annotations

import argparse

from clip_tca.cli import options as shared
from clip_tca.core.remote import locate


def add_compare(command: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    command.description = "Print the records of clip-tca eval --output FILE.json as one table for each data set."
    command.add_argument("record", nargs="+", help="JSON file")
    shared.add_output(command)
    command.set_defaults(run=compare)


def compare(options: argparse.Namespace) -> int:
    """Print several records in one table."""
    from clip_tca.results.record import blaming, read_all
    from clip_tca.results.rendering import as_json, render_tables
    from clip_tca.results.table import comparison

    shared.check_result(options)
    records = read_all(options.record)

    def text(output_format: str) -> str:
        if output_format == "json":
            return as_json({"records": list(records.values())})
        return render_tables(comparison(records, options.metric or "accuracy"), output_format)

    with blaming(options.record):
        shared.deliver(options, text)
    return 0


def add_report(command: argparse.ArgumentParser) -> None:
    """Add the options of ``report``."""
    command.description = (
        "Write the records of clip-tca eval --output FILE.json and clip-tca study --output PREFIX as one HTML page: "
        "tables, gains, classes, confusion, pictures (if eval had --examples N) and figures."
    )
    files = "JSON files, or folders of them; the figure of a study is read from the same folder"
    command.add_argument("results", nargs="+", metavar="RESULTS", help=files)
    command.add_argument("--output", "-o", metavar="FILE", required=True, help="HTML file; an existing one is replaced")
    command.set_defaults(run=report)


def report(options: argparse.Namespace) -> int:
    """Write records as one HTML page."""
    from clip_tca.core.files import write_text
    from clip_tca.report.page import page, read
    from clip_tca.results.record import blaming

    shared.check_output(options.output)
    sources = read(options.results)
    with blaming(options.results):
        text = page(sources)
    write_text(locate(options.output), text)
    print(f"written: {options.output} ({len(text.encode()) / 1000:,.0f} kB)")
    return 0


def add_explain(command: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    command.description = (
        "Explain in words, and then in figures, a saved adapter or a record of clip-tca eval --output FILE.json."
    )
    command.add_argument("state", metavar="STATE|RESULT", help="saved state (file, folder or hub id) or record (JSON)")
    command.set_defaults(run=explain)


def explain(options: argparse.Namespace) -> int:
    """Print a saved adapter or a record in plain words, and whether adaptation can be trusted."""
    path = locate(options.state)
    if path.is_file():
        with path.open("rb") as file:
            is_record = file.read(64).lstrip().startswith(b"{")
        if is_record:
            from clip_tca.results.explanation import explain_record
            from clip_tca.results.record import blaming, read

            records = read(path)
            with blaming([options.state]):
                print("\n\n".join("\n".join(explain_record(record)) for record in records))
            return 0
    from clip_tca.adapters.state import from_pretrained

    print(from_pretrained(options.state).explain())
    return 0


def add_export(command: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    command.description = (
        "Fold a saved LinearTCA or ConditionalTCA into a linear classifier: .onnx (needs the onnx extra), "
        "or .safetensors with weight and bias for torch.nn.Linear."
    )
    command.add_argument("state", metavar="STATE", help="saved state: a file of --save-state, a folder or a hub id")
    command.add_argument("--output", "-o", required=True, metavar="FILE", help="ends with .onnx or .safetensors")
    command.set_defaults(run=export)


def export(options: argparse.Namespace) -> int:
    """Write a saved state as a linear classifier, and say what is in it."""
    shared.check_output(options.output)
    from clip_tca.adapters.export import export as write
    from clip_tca.adapters.state import from_pretrained

    adapter = from_pretrained(options.state)
    write(adapter, locate(options.output))
    classes, dim = adapter.g.n_classes, adapter.n_features_in_
    unit = "of any length, which the model scales" if options.output.endswith(".onnx") else "of unit length"
    length = unit if adapter._of_unit_length else "as they come"
    print(f"written: {options.output}: {dim} dimensions to {classes} classes; for embeddings {length}")
    return 0
