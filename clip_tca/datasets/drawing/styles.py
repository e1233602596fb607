"""The four styles by name: each turns a placed figure and its place into a picture."""

from clip_tca.datasets.drawing.cartoon import cartoon
from clip_tca.datasets.drawing.painting import art_painting
from clip_tca.datasets.drawing.photo import photo
from clip_tca.datasets.drawing.sketch import sketch

RENDERERS = {"art_painting": art_painting, "cartoon": cartoon, "photo": photo, "sketch": sketch}
