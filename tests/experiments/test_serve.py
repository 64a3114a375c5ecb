"""The server translates for several clients, and answers a bad request with the reason."""

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import jformer
from experiments.serve import MAX_BATCH, make_server


@pytest.fixture(scope="module")
def run():
    return jformer.load("tests/stored_run/run")


@pytest.fixture(scope="module")
def url(run):
    server = make_server(run, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def post(url, content):
    with urllib.request.urlopen(url, json.dumps(content).encode()) as response:
        return json.loads(response.read())


def test_concurrent_requests_get_the_translations_of_their_sentences(run, url):
    requests = [["1 2 3"], ["4 5", "6"], ["7 8 9"], ["1 2 3", "4"]]
    with ThreadPoolExecutor(len(requests)) as clients:
        replies = list(clients.map(lambda sentences: post(url, sentences), requests))
    assert replies == [run.translate(sentences) for sentences in requests]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (["1"] * (MAX_BATCH + 1), str(MAX_BATCH)),
        ("no list", "must be a list"),
        ([1], "TextEncodeInput"),
    ],
)
def test_a_bad_request_gets_status_400_and_the_reason(url, content, reason):
    with pytest.raises(urllib.error.HTTPError) as raised:
        post(url, content)
    with raised.value as error:
        assert error.code == 400
        assert reason in json.loads(error.read())["error"]
