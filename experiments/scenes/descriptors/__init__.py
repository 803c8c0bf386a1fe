"""What can be seen in an image, and what it takes to see it.

A *piece* is one step of work on one image: decode it, take its gradients, sort its SIFT patches
into words, count the words. Pieces are built from other pieces, so that each is computed, timed and
charged once, however many descriptors stand on it: a spatial pyramid of SIFT words costs only its
histogram, once the words are known. A *descriptor* is a piece whose value is a vector that
images can be compared by. All pieces are intermediates of one ``greedymiser.Sources``.

scikit-image and OpenCV do the work; both come with the extra ``experiments``.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments.scenes.descriptors.gist import add_gist
from experiments.scenes.descriptors.grids import Floats
from experiments.scenes.descriptors.histograms import add_edges, add_histograms, add_patterns
from experiments.scenes.descriptors.layouts import add_layouts
from experiments.scenes.descriptors.libraries import one_thread
from experiments.scenes.descriptors.patches import add_patches
from experiments.scenes.descriptors.registry import Descriptors
from experiments.scenes.descriptors.views import add_views, grey_levels
from experiments.scenes.descriptors.words import add_bags, add_templates, learn_codebooks

__all__ = ["Descriptors", "catalogue", "grey_levels", "learn_codebooks", "one_thread"]


def catalogue(
    n_words: int = 200, n_words_large: int = 800, n_banks: int = 8,
    codebooks: Mapping[str, Floats] | None = None,
) -> Descriptors:  # fmt: skip
    """All pieces of work, with codebooks of these sizes and so many banks of templates.

    Examples
    --------
    >>> catalogue().required(["sift16_level2"])
    ['decode', 'image', 'gradients', 'oriented', 'sift16', 'sift16_words', 'sift16_level2']
    """
    pieces = Descriptors(codebooks)
    add_views(pieces)
    add_layouts(pieces)
    add_histograms(pieces)
    add_edges(pieces)
    add_gist(pieces)
    add_patterns(pieces)
    add_patches(pieces)
    add_bags(pieces, n_words, n_words_large)
    add_templates(pieces, n_banks)
    return pieces
