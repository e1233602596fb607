"""Object stores for tests: ``memory://`` in this process, and an S3 server (moto) on 127.0.0.1. No other is asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from uuid import uuid4

import fsspec
import pytest

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server of our own."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(s3_server, monkeypatch) -> Iterator[str]:
    """The URL of a new bucket."""
    import s3fs

    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{uuid4().hex[:12]}"
    s3fs.S3FileSystem(use_listings_cache=False).mkdir(bucket)
    yield f"s3://{bucket}"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty folder in memory."""
    name = f"memory://{uuid4().hex[:12]}"
    yield name
    store = fsspec.filesystem("memory")
    if store.exists(name):
        store.rm(name, recursive=True)


@pytest.fixture(params=["memory", "s3"])
def place(request) -> str:
    """The URL of an empty folder in each of them."""
    return request.getfixturevalue(request.param)


def content(url: str) -> dict[str, bytes]:
    """All files below a URL, by their names there."""
    store, key = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return {name.removeprefix(key).lstrip("/"): store.cat_file(name) for name in store.find(key)}


def upload(folder: object, url: str) -> None:
    """Copy the files of a local folder."""
    store, key = fsspec.core.url_to_fs(url, use_listings_cache=False)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        store.pipe_file(f"{key}/{path.relative_to(folder)}", path.read_bytes())
