"""Images of scenes: read, described once, and compared."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.scenes.descriptors import Descriptors, grey_levels, learn_codebooks, one_thread
from experiments.workspace import Workspace

Floats = NDArray[np.floating]
Indices = NDArray[np.intp]

IMAGES = "images.tar"

# Images whose descriptors are one step: what a killed run may lose.
CHUNK = 150

# The settings that descriptors depend on.
EXTRACTION = ("images", "descriptors", "n_words", "n_words_large", "codebook_images", "seed")


@dataclass(frozen=True)
class Images:
    """Image files without duplicates, and the scene that each shows."""

    names: list[str]
    files: list[bytes]
    # Position in ``classes`` of each image's scene.
    labels: Indices
    classes: list[str]

    @property
    def fingerprint(self) -> str:
        """Tells these images from any others."""
        digest = hashlib.sha256()
        for name, file in zip(self.names, self.files, strict=True):
            digest.update(f"{name}\n".encode())
            digest.update(hashlib.sha256(file).digest())
        return digest.hexdigest()


def read_images(data: Path) -> Images:
    """Read all images of the archive; of each group of identical files, only the first is kept."""
    path = Path(data) / IMAGES
    if not path.is_file():
        raise FileNotFoundError(f"data must be a folder with {IMAGES}, and {str(data)!r} has none")
    try:
        with tarfile.open(path) as archive:
            found = {
                member.name.removeprefix("./"): archive.extractfile(member).read()  # type: ignore[union-attr]
                for member in archive
                if member.isfile() and _is_image(Path(member.name))
            }
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{str(path)!r} is not a whole tar archive: {error}") from None
    kept = {hashlib.sha256(found[name]).digest(): name for name in sorted(found, reverse=True)}
    names = sorted(kept.values())
    scenes = [Path(name).parent.name for name in names]
    classes = sorted(set(scenes))
    if len(classes) < 2:
        raise ValueError(f"{path} has images of {len(classes)} classes; folders name the classes")
    labels = np.array([classes.index(scene) for scene in scenes], dtype=np.intp)
    return Images(names, [found[name] for name in names], labels, classes)


def check_readable(images: Images) -> None:
    """Raise if an image cannot be decoded: now, and not somewhere in the long work."""
    for name, file in zip(images.names, images.files, strict=True):
        try:
            grey_levels(file)
        except ValueError as error:
            raise ValueError(f"{name!r} of {IMAGES}: {error}") from None


def _is_image(path: Path) -> bool:
    """Whether a file of the archive is a picture of a class: in a folder, and not hidden."""
    is_picture = path.suffix.lower() in (".jpg", ".jpeg", ".png")
    return is_picture and path.parent.name != "" and not path.name.startswith(".")


# -- descriptors, computed once -------------------------------------------------------------------


def extract(
    images: Images, pieces: Descriptors, names: Sequence[str], workspace: Workspace,
    n_jobs: int | None,
) -> dict[str, Floats]:  # fmt: skip
    """Descriptors of all images: one matrix per descriptor, one row per image."""
    from joblib import Parallel, delayed

    starts = range(0, len(images.files), CHUNK)
    parts: list[dict[str, Floats]] = []
    with Parallel(n_jobs=n_jobs or 1) as parallel:
        for i, start in enumerate(starts):
            files = images.files[start : start + CHUNK]

            def make(files: Sequence[bytes] = files) -> dict[str, Floats]:
                batches = [files[k : k + 10] for k in range(0, len(files), 10)]
                done = parallel(
                    delayed(_describe_images)(batch, pieces, names) for batch in batches
                )
                return {name: np.concatenate([part[name] for part in done]) for name in names}

            workspace.told("images described", start, len(images.files))
            parts.append(workspace.arrays(f"descriptors/part-{i:02d}", make, EXTRACTION))
    workspace.told("images described", len(images.files), len(images.files))
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in names}


def _describe_images(
    files: Sequence[bytes], pieces: Descriptors, names: Sequence[str]
) -> dict[str, Floats]:
    from threadpoolctl import threadpool_limits

    one_thread()
    with threadpool_limits(1):
        rows = [pieces.compute(file, names) for file in files]
    return {name: np.stack([row[name] for row in rows]) for name in names}


def codebooks_of(
    images: Images, pieces: Descriptors, names: Sequence[str], workspace: Workspace
) -> dict[str, Floats]:
    """Codebooks, learned once from a few images whose labels are not looked at."""
    settings = workspace.settings

    def make() -> dict[str, Floats]:
        files = [images.files[i] for i in _unlabelled_sample(len(images.files), workspace)]
        workspace.told("codebooks", 0, 1)
        return learn_codebooks(pieces, files, names, settings["seed"])

    return workspace.arrays("codebooks", make, EXTRACTION)


def _unlabelled_sample(n: int, workspace: Workspace) -> Indices:
    rng = np.random.default_rng(workspace.settings["seed"])
    return rng.permutation(n)[: workspace.settings["codebook_images"]]


# -- comparing images -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedding:
    """How a descriptor becomes a point, such that images are compared by Euclidean distance.

    Histograms go through the square root, which makes it Hellinger's distance; the columns of other
    descriptors are brought to the same spread, as it is in a few images.
    """

    kind: str
    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, kind: str, sample: Floats) -> Embedding:
        spread = sample.std(axis=0)
        return cls(kind, sample.mean(axis=0), np.where(spread > 1e-6, spread, 1).astype(np.float32))

    def __call__(self, values: Floats) -> Floats:
        if self.kind == "histogram":
            return np.sqrt(values)
        # One wild column must not drown all others.
        return np.clip((values - self.mean) / self.spread, -5, 5)


def embeddings(
    values: Mapping[str, Floats], pieces: Descriptors, workspace: Workspace
) -> dict[str, Embedding]:
    """How each descriptor becomes a point; the images of the codebooks set the scales."""
    n = len(next(iter(values.values())))
    sample = _unlabelled_sample(n, workspace)
    return {
        name: Embedding.of(pieces.kinds[name], matrix[sample]) for name, matrix in values.items()
    }


def squared_distances(rows: Floats, known: Floats, known_squares: Floats) -> Floats:
    """Squared distances of rows to known points: one product of matrices."""
    distances = rows @ known.T
    distances *= -2
    distances += known_squares
    distances += np.einsum("ij,ij->i", rows, rows)[:, None]
    return np.maximum(distances, 0, out=distances)


def all_squared_distances(points: Floats) -> Floats:
    """Squared distances of all points to each other."""
    gram = points @ points.T
    squares = gram.diagonal().copy()
    gram *= -2
    gram += squares
    gram += squares[:, None]
    return np.maximum(gram, 0, out=gram)


def likeness(distances: Floats, known: Indices) -> Floats:
    """Likeness of all points to some of them: 1 at no distance, 1/e at those points' mean one.

    ``distances`` are the squared ones of all points to each other.
    """
    rows = distances[:, known]
    rows /= -max(float(rows[known].mean()), 1e-12)
    return np.exp(rows, out=rows)


class ImageDistances(Mapping[str, Floats]):
    """Squared distances of all images to each other, by each descriptor.

    They are computed once, and each is read when it is asked for: all of them would fill the
    memory of a small machine.
    """

    def __init__(self, names: Sequence[str], workspace: Workspace):
        self._names = names
        self._workspace = workspace

    @classmethod
    def between(
        cls, values: Mapping[str, Floats], how: Mapping[str, Embedding], workspace: Workspace
    ) -> ImageDistances:
        """Compute those that are not there yet."""
        for done, (name, matrix) in enumerate(values.items()):
            workspace.told("descriptors compared", done, len(values))
            if not workspace.is_finished(f"distances/{name}", ".npz", EXTRACTION):
                squared = all_squared_distances(how[name](matrix))
                workspace.arrays(f"distances/{name}", partial(dict, squared=squared), EXTRACTION)
        return cls(list(values), workspace)

    def __getitem__(self, name: str) -> Floats:
        def missing() -> dict[str, Floats]:
            raise KeyError(f"there are no distances of {name!r}")

        return self._workspace.arrays(f"distances/{name}", missing, EXTRACTION)["squared"]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Kernels(Mapping[str, Floats]):
    """Likeness of all images to some of them, by each descriptor; computed when it is asked for.

    Parameters
    ----------
    distances : mapping
        Squared distances of all images to each other, by descriptor.
    known : array
        Positions of the images that all are compared with.
    kept : bool
        Keep what was computed, for whoever asks again.
    """

    def __init__(self, distances: Mapping[str, Floats], known: Indices, *, kept: bool = False):
        self.distances, self.known = distances, known
        self._kept: dict[str, Floats] | None = {} if kept else None

    def __getitem__(self, name: str) -> Floats:
        if self._kept is None:
            return likeness(self.distances[name], self.known)
        if name not in self._kept:
            self._kept[name] = likeness(self.distances[name], self.known)
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.distances)

    def __len__(self) -> int:
        return len(self.distances)
