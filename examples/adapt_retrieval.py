"""Adapt a FAISS index, and measure when this helps retrieval.

    python examples/adapt_retrieval.py [EMBEDDINGS.safetensors]

Needs FAISS: ``pip install ".[retrieval]"``. EMBEDDINGS is a file written by ``clip-tca embed -o``; the default is the
demo. The program fits ConditionalTCA to the index of each domain. It prints the precision at 10 (percent) before and
after, for each kind of query.
"""

import subprocess
import sys
import tempfile

import faiss
import numpy as np

from clip_tca import ConditionalTCA, ZeroShotClassifier, load_embeddings


def build(vectors: np.ndarray) -> faiss.IndexFlatIP:
    """Build an index of unit vectors, searched by cosine similarity."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def adapted(index: faiss.IndexFlatIP, g: ZeroShotClassifier) -> faiss.IndexFlatIP:
    """Adapt all vectors of an index. The index contains everything that adaptation needs."""
    vectors = index.reconstruct_n(0, index.ntotal)
    return build(ConditionalTCA(g).fit(vectors).transform(vectors, unit=True))


def precision(index: faiss.IndexFlatIP, labels: np.ndarray, queries: np.ndarray, wanted: np.ndarray, own: int) -> float:
    """Percent of the ten nearest that belong to the wanted class; ``own`` is 1 if a query finds itself first."""
    return 100 * float((labels[index.search(queries, 10 + own)[1][:, own:]] == wanted[:, None]).mean())


with tempfile.TemporaryDirectory() as folder:
    file = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/demo.safetensors"
    if len(sys.argv) == 1:
        subprocess.run([sys.executable, "-m", "clip_tca", "embed", "--dataset", "demo", "-o", file], check=True)  # noqa: S603
    data = load_embeddings(file)
g, y = data.classifier(), {name: labels.numpy() for name, (_, labels) in data.domains.items()}
text, classes = g.text.float().numpy(), np.arange(g.n_classes)
before = {name: build((z / z.norm(dim=1, keepdim=True)).float().numpy()) for name, (z, _) in data.domains.items()}
after = {name: adapted(index, g) for name, index in before.items()}
named, lacking, other, same = ([], []), ([], []), ([], []), ([], [])
for i, side in enumerate((before, after)):
    z = {name: index.reconstruct_n(0, index.ntotal) for name, index in side.items()}
    named[i].extend(precision(side[a], y[a], text, classes, 0) for a in z)
    other[i].extend(precision(side[b], y[b], z[a], y[a], 0) for a in z for b in z if a != b)
    same[i].extend(precision(side[a], y[a], z[a], y[a], 1) for a in z)
for part in np.array_split(classes, 4):  # g without a quarter of the classes, and these as queries
    without = ZeroShotClassifier(np.delete(text, part, axis=0), scale=g.scale)
    for a, index in before.items():
        for i, side in enumerate((index, adapted(index, without))):
            lacking[i].append(precision(side, y[a], text[part], part, 0))
print(f"{'query':28}{'before':>8}{'after':>8}   better in")
queries = ("text: a class of g", "text: a class that g lacks", "image of another domain", "image of the same domain")
for query, (old, new) in zip(queries, (named, lacking, other, same), strict=True):
    print(f"{query:28}{np.mean(old):8.1f}{np.mean(new):8.1f}   {np.greater(new, old).sum()} of {len(old)}")
