"""Images whose prediction changed: the fixed and the broken alike, with the count of all of each kind."""

from __future__ import annotations

import base64
import binascii

from clip_tca.report.markup import Safe, count, data_uri, folded, join, tag
from clip_tca.report.run import Run, Section
from clip_tca.results.schema import ExampleGroup, ExampleImage, ExampleKind

TITLE = "Examples of changed predictions"
HEADINGS: dict[ExampleKind, tuple[str, str]] = {
    "fixed": ("Fixed", "wrong before, right now"),
    "broken": ("Broken", "right before, wrong now"),
    "still_wrong": ("Still wrong", "another wrong class"),
}


def changes(run: Run) -> Section:
    """By method and domain."""
    examples = run.record.get("examples")
    if not examples or not examples["groups"]:
        return Section(TITLE, None, "none were kept: evaluate with --examples N to have them")
    intro = (
        f"Against zero-shot, in the first shuffle. Nobody picked them: of all images of a kind, in the order of the "
        f"data set, up to {examples['limit']} at even distances. The counts are of all images of the kind."
    )
    if run.record["data"]["origin"].get("kind") in ("embeddings", "synthetic"):
        intro += " There are no pictures; an image is named by its position in its domain, from 0."
    by_method: dict[str, list[ExampleGroup]] = {}
    for group in examples["groups"]:
        by_method.setdefault(group["method"], []).append(group)
    parts = [(_summary(run, method, groups), join(*map(_domain, groups))) for method, groups in by_method.items()]
    return Section(TITLE, join(tag("p", intro, class_="lead"), folded(parts)))


def _summary(run: Run, method: str, groups: list[ExampleGroup]) -> Safe:
    totals = {kind: sum(group["counts"][kind] for group in groups) for kind in HEADINGS}
    words = ", ".join(f"{totals[kind]:,} {name.lower()}" for kind, (name, _) in HEADINGS.items())
    return join(run.method_label(method), " ", tag("span", words, class_="aside"))


def _domain(group: ExampleGroup) -> Safe:
    kinds = tag("div", *[_kind(group, kind) for kind in HEADINGS], class_="kinds")
    return tag("section", tag("h4", group["domain"]), kinds, class_="changed")


def _kind(group: ExampleGroup, kind: ExampleKind) -> Safe:
    name, meaning = HEADINGS[kind]
    total, listed = group["counts"][kind], group[kind]
    title = tag("h5", f"{name}: {total:,}", " ", tag("span", meaning, class_="aside"))
    if not listed:
        return tag("div", title, tag("p", "none", class_="aside"), class_=f"kind {kind}")
    images = tag("ul", *[tag("li", _image(image)) for image in listed], class_="thumbs")
    more = "" if total == len(listed) else f"{count(len(listed), 'image', 'images')} of {total:,}"
    return tag("div", title, images, tag("p", more, class_="aside") if more else None, class_=f"kind {kind}")


def _image(image: ExampleImage) -> Safe:
    name = image.get("name") or f"image {image['position']}"
    words = [tag("span", "true ", tag("b", image["true"])), tag("span", image["before"], " → ", image["after"])]
    return tag("figure", _picture(image, name), tag("figcaption", *words), title=name)


def _picture(image: ExampleImage, name: str) -> Safe:
    """The thumbnail, if it is a JPEG in base64 and nothing else; otherwise the image's index in its domain."""
    try:
        content = base64.b64decode(image.get("thumbnail") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        content = b""
    if not content.startswith(b"\xff\xd8\xff"):
        return tag("span", f"no. {image['position']}", class_="blank")
    alt = f"{name}: a {image['true']}, called {image['before']} before and {image['after']} after"
    return tag("img", src=data_uri("image/jpeg", content), alt=alt, loading="lazy", decoding="async")
