"""The seven figures by class: each draws itself in a look and says its pose."""

from clip_tca.datasets.drawing.dog import dog
from clip_tca.datasets.drawing.elephant import elephant
from clip_tca.datasets.drawing.giraffe import giraffe
from clip_tca.datasets.drawing.guitar import guitar
from clip_tca.datasets.drawing.horse import horse
from clip_tca.datasets.drawing.house import house
from clip_tca.datasets.drawing.person import person

FIGURES = {figure.__name__: figure for figure in (dog, elephant, giraffe, guitar, horse, house, person)}
