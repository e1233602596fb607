"""``clip-tca app``: label pictures on a local web page. This file alone, as ``app.py``, is a Hugging Face Space too.

It binds to 127.0.0.1 unless a share link is asked for. Folders of this machine can be named only there: on a Space or
through a share link, strangers would read them.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clip_tca.core.checks import counted, install
from clip_tca.methods.registry import DEFAULT

if TYPE_CHECKING:
    import pandas as pd

    from clip_tca.labelling.label import Labelling

PORT = 7860
MOST = 120  # pictures in the gallery

# As many columns as the window has room for, and captions that are not cut.
STYLE = """
#gallery .grid-container { grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)) }
#gallery .caption-label { white-space: normal; max-width: 100%; left: 0; right: 0; overflow: visible; line-height: 1.2 }
"""

CHANGED, UNCERTAIN, ALL = VIEWS = ("changed", "least certain", "all")
ABOUT = """\
# Pictures in, labels out
Drop pictures{folder}, name what they may show, and click **Label**. Or click it now: the bundled pictures are ready.
*Before* is the prediction of CLIP for each picture alone. *After* is adapted to all of them together."""


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = "Open a local web page to label pictures: drop them, name the classes, correct, download."
    command.add_argument("--port", type=int, default=PORT, metavar="N", help="default: %(default)s")
    model = "model that the page starts with, as in label (default: demo, the small bundled one)"
    command.add_argument("--model", default="demo", help=model)
    command.add_argument(
        "--share", action="store_true", help="also get a public link from gradio.live; folders can't be named then"
    )
    command.add_argument("--open", action="store_true", help="open the browser")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    if not 0 < options.port < 65536:
        raise ValueError(f"port: {options.port}; allowed are whole numbers from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", options.port))
        except OSError:
            raise ValueError(f"port: {options.port} is in use; give another, such as --port {PORT + 1}") from None
    page = build(options.model, folders=not options.share)
    print(f"clip-tca app: http://127.0.0.1:{options.port} (Ctrl-C ends it)", flush=True)
    launch(page, server_name="127.0.0.1", server_port=options.port, share=options.share, inbrowser=options.open)
    return 0


def launch(page: Any, **options: Any) -> None:
    """Serve a page, with the fonts of the system: the library's themes load theirs from other servers."""
    theme = gradio().themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    page.launch(quiet=True, theme=theme, css=STYLE, footer_links=[], max_file_size="50mb", ssr_mode=False, **options)


def gradio() -> Any:
    """The library, told before it is imported to report nothing."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import gradio as gr
    except ImportError:
        raise ValueError(f"app: the package gradio is missing; {install('app')}") from None
    return gr


def build(model: str = "demo", folders: bool = True) -> Any:
    """The page; ``folders``: whether folders of this machine may be named."""
    gr = gradio()
    from clip_tca.data.hub import demo_set

    with gr.Blocks(title="clip-tca", analytics_enabled=False) as page:
        found, rows, place = gr.State(), gr.State([]), gr.State()
        gr.Markdown(ABOUT.format(folder=" or name a folder" if folders else ""))
        with gr.Row():
            with gr.Column():
                files = gr.File(label="Pictures", file_count="multiple", file_types=["image"], elem_id="files")
                folder = gr.Textbox(label="or a folder on this machine", elem_id="folder", visible=folders)
            with gr.Column():
                names = ", ".join(demo_set().classes)
                classes = gr.Textbox(names, label="What they may show, separated by commas", elem_id="classes", lines=3)
                chosen = gr.Textbox(model, label="Model (demo is bundled; ViT-B-16-quickgelu is CLIP)", elem_id="model")
                start = gr.Button("Label", variant="primary", elem_id="start")
        said = gr.Markdown(elem_id="said")
        view = gr.Radio(list(VIEWS), value=CHANGED, label="Show", elem_id="view")
        title = "before → after; click a picture to correct it"
        gallery = gr.Gallery(label=title, allow_preview=False, object_fit="contain", buttons=[], elem_id="gallery")
        with gr.Row():
            selected = gr.Textbox(label="Picture", interactive=False, elem_id="selected")
            right = gr.Dropdown([], label="It shows", elem_id="right")
            correct = gr.Button("Correct", elem_id="correct")
        table = gr.DownloadButton("Download CSV", elem_id="download")

        def label(files: Any, folder: str, names: str, model: str, view: str) -> list[Any]:
            try:
                labelled = labelling(files, folder if folders else "", names, model)
            except (ValueError, OSError) as error:
                raise gr.Error(str(error), duration=None, print_exception=False) from None
            shown, pictures = show(labelled, view)
            right = gr.Dropdown(choices=labelled.classes, value=None)
            return [labelled, shown, None, words(labelled), pictures, "", right, download(labelled.table)]

        def look(labelled: Labelling | None, view: str) -> list[Any]:
            return [[], []] if labelled is None else list(show(labelled, view))

        def select(labelled: Labelling, rows: list[int], event: Any) -> list[Any]:
            row = rows[event.index]
            return [row, *labelled.table.loc[row, ["file", "label"]]]

        select.__annotations__ = {"event": gr.SelectData}  # by which the library knows that it wants the event

        def put_right(labelled: Labelling | None, view: str, row: int | None, name: str) -> list[Any]:
            if labelled is None or row is None or not name:
                raise gr.Error("Click a picture first, and choose what it shows.", print_exception=False)
            labelled.table.loc[row, ["label", "corrected"]] = [name, True]
            return [labelled, *show(labelled, view), download(labelled.table)]

        label_out = [found, rows, place, said, gallery, selected, right, table]
        start.click(label, [files, folder, classes, chosen, view], label_out)
        view.change(look, [found, view], [rows, gallery])
        gallery.select(select, [found, rows], [place, selected, right])
        correct.click(put_right, [found, view, place, right], [found, rows, gallery, table])
    return page


def labelling(files: list[str] | None, folder: str, names: str, model: str) -> Labelling:
    """Label what was dropped, or a folder, or, without either, the demo."""
    from clip_tca.labelling.label import run_labelling

    if folder.strip() and not Path(folder.strip()).expanduser().exists():
        raise ValueError(f"folder: {folder.strip()} is not a file or folder; check its name")
    labelled = run_labelling(files or folder.strip() or "demo", names, method=DEFAULT, model=model.strip() or None)
    if files:  # they lie in a temporary folder, whose name says nothing
        labelled.table["file"] = [Path(name).name for name in labelled.table["file"]]
    labelled.table["corrected"] = False
    return labelled


def words(labelled: Labelling) -> str:
    """The summary of ``clip-tca label``, as Markdown."""
    from clip_tca.cli.label import class_lines, trust_lines

    trust = [line for line in trust_lines(labelled) if not line.startswith("What next")]
    head = " ".join([f"**{counted(len(labelled.table), 'picture')}.**", *trust])
    return "\n".join([head, "", "```", *class_lines(labelled), "```"])


def show(labelled: Labelling, view: str) -> tuple[list[int], list[tuple[Any, str]]]:
    """The rows of a view, at even distances where there are many, and their pictures with what was before and after."""
    from clip_tca.evaluation.examples import spread

    table = labelled.table
    order = table["confidence"].sort_values(kind="stable").index
    rows = {
        CHANGED: spread(table.index[table["changed"]].tolist(), MOST),
        UNCERTAIN: order.tolist()[:MOST],
        ALL: spread(table.index.tolist(), MOST),
    }[view]
    places = [(domain, i) for domain in labelled.pictures.domains.values() for i in range(len(domain))]
    shown = []
    for row in rows:
        domain, index = places[row]
        small = domain.image(index)
        small.thumbnail((256, 256))
        before, after = table.loc[row, "zero_shot"], table.loc[row, "label"]
        caption = f"{before} → {after}" if before != after else f"{after}"
        shown.append((small, f"{caption} (yours)" if table.loc[row, "corrected"] else caption))
    return rows, shown


def download(table: pd.DataFrame) -> str:
    """The table as a CSV file for the browser."""
    from clip_tca.results.predictions import write_table

    path = Path(tempfile.mkdtemp(prefix="clip-tca-app-")) / "labels.csv"
    write_table(path, table)
    return str(path)


if __name__ == "__main__":  # a Space runs this file, and says so
    launch(build(folders="SPACE_ID" not in os.environ))
