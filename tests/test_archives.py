"""What was made of functions beforehand is used while they are what they were."""

from tokenize import TokenError
from unittest.mock import Mock

import pytest

from greedymiser._core import archives
from greedymiser._core.archives import Archive, write_archive


def twice(x):
    return 2 * x


def thrice(x):
    return 3 * x


@pytest.fixture
def archive(tmp_path):
    file = tmp_path / "made.zip"
    digests = {"twice": Archive(file).digest(twice)}
    write_archive(file, {"twice": b"two" * 1000}, digests, {"with": "care"})
    return Archive(file)


def test_what_was_made_of_a_function_is_found_while_it_is_current(archive):
    assert archive.current("twice", twice) == b"two" * 1000
    assert archive.about == {"with": "care"}
    assert archive.current("thrice", thrice) is None
    assert archive.current("twice", thrice) is None
    other_compiler = Archive(archive.file, compiler=lambda: b"another")
    assert other_compiler.current("twice", twice) is None


@pytest.mark.parametrize(
    "error", [OSError("no source"), TypeError, TokenError, SyntaxError, ValueError]
)
def test_without_source_nothing_is_current(archive, monkeypatch, error):
    monkeypatch.setattr(archives, "digest_of", Mock(side_effect=error))
    assert archive.current("twice", twice) is None


def test_an_archive_is_always_the_same_for_the_same_contents(archive, tmp_path):
    again = tmp_path / "again.zip"
    write_archive(again, {"twice": b"two" * 1000}, archive.digests, archive.about)
    assert again.read_bytes() == archive.file.read_bytes()


def test_a_damaged_archive_is_as_none(archive):
    whole = archive.file.read_bytes()
    damaged = [b"", whole[: len(whole) // 2], b"[]"]
    for at in range(0, len(whole), 7):
        wrong = bytearray(whole)
        wrong[at] ^= 255
        damaged.append(bytes(wrong))
    for content in damaged:
        archive.file.write_bytes(content)
        assert Archive(archive.file).current("twice", twice) in (None, b"two" * 1000)
    archive.file.unlink()
    assert Archive(archive.file).current("twice", twice) is None
    assert Archive(archive.file).about == {}


def test_digests_that_are_no_digests_are_none(tmp_path):
    file = tmp_path / "made.zip"
    for digests in ([1, 2], "text", None):
        write_archive(file, {}, digests, {})
        assert Archive(file).digests == {}
