"""Files to read by path or URL: lines of objects, versions, and what cannot be read."""

import pytest

from seq2seq.files import remote
from seq2seq.files.input_files import absolute_path, is_rereadable, version_of
from seq2seq.files.lines import check_file, raw_lines, text_lines
from seq2seq.runtime.errors import CONFIGURATION, DATA, UserError
from tests.support.compressed import COMPRESS

TEXT = "".join(f"{i} ä\u2028\n" for i in range(40))


@pytest.mark.parametrize("part", [2, 7, 64, 1 << 20])
@pytest.mark.parametrize("name", ["a.txt", "compressed", *(f"a{suffix}" for suffix in COMPRESS)])
def test_the_lines_of_an_object_are_those_of_a_file(storage, tmp_path, monkeypatch, part, name):
    monkeypatch.setattr(remote, "PART", part)
    suffix = ".gz" if name == "compressed" else name.removeprefix("a")
    content = COMPRESS.get(suffix, bytes)(TEXT.encode())
    (tmp_path / name).write_bytes(content)
    storage[name] = content
    local, url = str(tmp_path / name), f"{storage.url}/{name}"
    assert list(raw_lines(url)) == list(raw_lines(local)) == TEXT.encode().split(b"\n")[:-1]
    assert list(text_lines(url)) == list(text_lines(local))


def test_an_empty_object_has_no_lines_and_is_no_corpus(storage):
    storage["a"] = b""
    url = f"{storage.url}/a"
    assert list(text_lines(url)) == []
    with pytest.raises(UserError, match=f"{url} is empty: expected one sentence per line") as no:
        check_file(url)
    assert no.value.code == DATA


def test_an_object_that_is_not_there_is_refused(storage):
    url = f"{storage.url}/none"
    for read in (check_file, version_of):
        with pytest.raises(UserError, match=f"^{url} does not exist; check the URL$") as refused:
            read(url)
        assert refused.value.code == DATA
    with pytest.raises(UserError, match=f"^{url} cannot be read: No such file") as refused:
        list(text_lines(url))
    assert refused.value.code == DATA


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionError("the network is down"), "ConnectionError: the network is down"),
        (PermissionError("Forbidden"), "Forbidden"),
    ],
)
def test_a_storage_that_cannot_be_read_is_one_line(storage, failing, error, message):
    storage["a"] = TEXT.encode()
    url = f"{storage.url}/a"
    failing("cat_file", error=error)
    with pytest.raises(UserError, match=f"{url} cannot be read: {message}") as refused:
        list(text_lines(url))
    assert refused.value.code == DATA
    failing("info", error=error)
    with pytest.raises(UserError, match=f"{url} cannot be read: {message}; check") as refused:
        check_file(url)
    assert refused.value.code == DATA


def test_an_object_that_changes_while_it_is_read_is_an_error(storage, monkeypatch):
    monkeypatch.setattr(remote, "PART", 16)
    storage["a"] = TEXT.encode()
    lines = text_lines(f"{storage.url}/a")
    next(lines)
    storage["a"] = TEXT.encode()
    with pytest.raises(UserError, match="a changed while it was read") as refused:
        list(lines)
    assert refused.value.code == DATA


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://bucket/a", "the corpus: nothing:// is not supported"),
        ("memory://", "the corpus has no bucket"),
        ("gs://user:secret@bucket/a", "the corpus has a user name.*got gs://…;"),
    ],
)
def test_a_url_that_is_not_supported_is_refused(url, message):
    with pytest.raises(UserError, match=message) as refused:
        check_file(url)
    assert refused.value.code == CONFIGURATION and "secret" not in str(refused.value)


def test_paths_become_absolute_and_urls_stay(storage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA", storage.url)
    assert absolute_path("a/../b") == str(tmp_path / "b")
    assert absolute_path("$DATA/a/../b") == "memory://bucket/a/../b"
    assert absolute_path("gs://bucket//a") == "gs://bucket//a"


def test_a_version_changes_with_the_content(storage, tmp_path):
    for path in (f"{storage.url}/a", str(tmp_path / "a")):
        storage["a"] = b"one"
        (tmp_path / "a").write_bytes(b"one")
        before = version_of(path)
        assert before == version_of(path) and before[:2] == (path, 3)
        storage["a"] = b"two"
        (tmp_path / "a").write_bytes(b"four")
        assert version_of(path) != before and is_rereadable(path)
    assert not is_rereadable("/dev/null") and not is_rereadable(str(tmp_path))
