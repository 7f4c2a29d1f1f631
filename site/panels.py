"""Figures of several panels: on a phone, one below the other."""

import re
from pathlib import Path

import numpy
from matplotlib import image

# Of a cell with the tag panels-335-668: its figure is cut at these thousandths of its width.
FIGURE = re.compile(
    r'(?s)(<div class="cell[^"]*tag_panels((?:-\d+)+)[^>]*>.*?)'
    r'(<img [^>]*src="([^"]*/)([^"/]+)\.png"[^>]*>)'
)


def below_each_other(pixels, cuts):
    """The panels between these columns, flush left. Raises ValueError where a cut hits ink."""
    for column in cuts:
        if (pixels[:, column] != pixels[0, 0]).any():
            raise ValueError(f"column {column} is not blank")
    panels = numpy.split(pixels, cuts, axis=1)
    widest = max(panel.shape[1] for panel in panels)
    rows = []
    for panel in panels:
        row = numpy.broadcast_to(pixels[0, 0], (len(panel), widest, pixels.shape[2]))
        row = row.copy()
        row[:, : panel.shape[1]] = panel
        rows.append(row)
    return numpy.concatenate(rows)


STACKED = {  # by the folder of the edition
    "notebooks": "Here, from left to right is from top to bottom.",
    "zh": "这里从左到右的各图改为从上到下排列。",
}


def for_a_phone(body, images, folder, edition):
    """The page, where such a figure has a second form, which is written beside the first.

    images: {name: file}; folder: where the pages' images lie.
    """

    def with_both(found):
        before, cuts, shown, path, name = found.groups()
        pixels = image.imread(images[f"{name}.png"])
        width = pixels.shape[1]
        cuts = [int(cut) * width // 1000 for cut in cuts.split("-")[1:]]
        stacked = numpy.ascontiguousarray(below_each_other(pixels, cuts))
        Path(folder).mkdir(exist_ok=True)
        image.imsave(Path(folder, f"{name}-phone.png"), stacked)
        height, width, _ = stacked.shape
        source = f'<source media="(max-width: 600px)" srcset="{path}{name}-phone.png"'
        source += f' width="{width}" height="{height}">'
        said = f'<small class="stacked">{STACKED[edition]}</small>'
        return f"{before}<picture>{source}{shown}</picture>{said}"

    return FIGURE.sub(with_both, body)
