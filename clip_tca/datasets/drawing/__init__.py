"""How the demo's pictures are drawn: figures of smooth shapes, backgrounds, and four styles that render them."""
