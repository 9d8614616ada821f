"""The service over HTTP: what it answers, and that bad input is refused with a remedy."""

from __future__ import annotations

import asyncio
import io
import json
import resource
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openfate import FeatureBank
from openfate.serving import LiveBank, LogUnavailableError
from openfate.serving.app import ARROW, Service, make_app
from openfate.serving.limits import Clients, Limits
from openfate.serving.metrics import Metrics
from serving.conftest import shop
from serving.test_live import wait_for


class Client:
    """Calls an application as a server would, without one."""

    def __init__(self, app):
        self.app, self.runner = app, asyncio.Runner()

    def __call__(self, method, path, body=None, headers=None):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        status, sent = self.runner.run(self._call(method, path, body or b"", headers or {}))
        assert status < 500 or status == 503, sent
        return status, sent

    async def _call(self, method, path, body, headers):
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("10.0.0.1", 1234),
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }
        incoming = [{"type": "http.request", "body": body}]
        parts, status, kinds = [], [0], [b""]

        async def receive():
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                kinds[0] = dict(message["headers"]).get(b"content-type", b"")
                self.headers = dict(message["headers"])
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        content = b"".join(parts)
        is_json = kinds[0].startswith(b"application/json")
        return status[0], json.loads(content) if is_json else content


@contextmanager
def serving(bundle, folder):
    """Make clients of services; all are closed at the end."""
    clients = []

    def make(train=None, **options):
        live = LiveBank(bundle, str(folder / "state"), commit_s=0.001, train=train)
        client = Client(make_app(Service(live, **options)))
        client.live = live
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.live.close()
        client.runner.close()


@pytest.fixture
def serve(bundle, tmp_path):
    with serving(bundle, tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def strict(bundle, tmp_path_factory):
    """One service for all that is refused: nothing of it is written."""
    with serving(bundle, tmp_path_factory.mktemp("strict")) as make:
        call = make(limits=Limits(rows=50, columns=50, new_features=30))
        call("POST", "/observe", {"rows": [ROW], "ids": ["a"]})
        yield call


ROW = {"page": "a", "device": "desk", "campaign": "autumn", "age": 41.5}


def test_one_row_and_many_are_predicted_as_by_the_bank(serve, bundle):
    call, bank = serve(), FeatureBank.load(bundle)
    rows = [*shop(20)[0].iter_rows(named=True), {"page": "b"}, {**ROW, "channel": "mail"}]
    status, one = call("POST", "/predict", {"row": ROW})
    assert status == 200
    assert one["predictions"][0]["probabilities"] == bank.predict(ROW, graph="state")[0].tolist()
    _, many = call("POST", "/predict", {"rows": rows})
    for row, told in zip(rows, many["predictions"], strict=True):
        wanted = bank.predict(row, graph="state")[0]
        np.testing.assert_allclose(told["probabilities"], wanted, rtol=1e-9)
    assert many["predictions"][-1]["unknown"] == ["channel"]
    frame = shop(50)[0]
    out = io.BytesIO()
    frame.write_ipc_stream(out)
    status, content = call("POST", "/predict", out.getvalue(), {"content-type": ARROW})
    assert status == 200
    found = pl.read_ipc_stream(io.BytesIO(content)).to_numpy()
    np.testing.assert_allclose(found, bank.predict(frame, graph="state"), atol=2e-6)


def test_what_is_observed_counts_with_the_next_request(serve):
    call = serve()
    new = {**ROW, "campaign": "spring"}
    assert call("POST", "/predict", {"row": new})[1]["predictions"][0]["unknown"] == ["campaign"]
    status, told = call("POST", "/observe", {"rows": [new], "ids": ["v1"]})
    assert (status, told["applied"], told["position"]) == (200, True, 1)
    answer = call("POST", "/predict", {"row": new, "reasons": True})[1]["predictions"][0]
    assert answer["new"] == [{"field": "campaign", "value": "spring"}]
    assert {"field", "value", "new", "effect", "output"} == answer["reasons"][0].keys()
    _, told = call("GET", "/features?new=true")
    assert [(one["field"], one["value"], one["rows"]) for one in told["features"]] == [
        ("campaign", "spring", 1)
    ]
    assert call("POST", "/labels", {"ids": ["v1"], "labels": [1]})[0] == 200
    [said] = call("GET", "/features?new=true")[1]["features"]
    assert (said["labels"], said["happened"], said["ignored"]) == (1, 1.0, answer["ignored"][1])
    assert call("POST", "/labels", {"rows": [ROW] * 60, "labels": [0, 1] * 30})[1]["applied"]
    _, worth = call("GET", "/worth")
    assert worth["labels"] == 61
    assert worth["points"][0]["used"].keys() == worth["points"][0]["ignored"].keys()
    for path in ("/schema", "/map", "/health", "/ready", "/metrics", "/openapi.json"):
        assert call("GET", path)[0] == 200
    metrics = call("GET", "/metrics")[1].decode()
    assert "openfate_labels 61" in metrics
    for name in (
        'calibration_happened{from="0.',
        'drift{of="new_cells"}',
        'score{features="ignored"',
        'weight{way="ignore"}',
        "evidence_strength ",
    ):
        assert f"openfate_{name}" in metrics


def test_predicted_rows_wait_for_their_labels(serve):
    call = serve(observe_requests=True)
    _, told = call("POST", "/predict", {"row": ROW, "id": 7})
    assert told["observed"] is True
    assert call("POST", "/labels", {"id": 7, "label": 1})[0] == 200
    _, told = call("POST", "/labels", {"ids": ["7"], "labels": [0]})
    assert told["error"]["remedy"] == "send it with revise=true to replace it"
    assert call("POST", "/labels", {"ids": ["7"], "labels": [0], "revise": True})[0] == 200
    assert call("POST", "/forget", {"ids": ["7"]})[1]["applied"]
    assert call.live.bank.n_rows == 400
    assert call("POST", "/forget", {"ids": ["7"]})[0] == 404


def test_a_repeated_key_counts_once(serve):
    call = serve()
    for known in (False, True):
        _, told = call("POST", "/observe", {"rows": [ROW]}, {"Idempotency-Key": "k1"})
        assert told["known"] is known
    assert call.live.bank.n_rows == 401


def test_roll_back_and_another_bundle(serve, bundle, tmp_path):
    call = serve()
    for n in range(3):
        call("POST", "/observe", {"rows": [{**ROW, "page": f"p{n}"}]})
    assert call("POST", "/rollback", {"to": 1})[0] == 200
    assert call.live.bank.n_rows == 401
    bank = FeatureBank.load(bundle)
    bank.observe(pl.DataFrame([ROW]))
    bank.save(tmp_path / "newer")
    assert call("POST", "/bundle", {"path": str(tmp_path / "newer")})[0] == 200
    assert call.live.bank.n_rows == 402
    status, told = call("POST", "/bundle", {"path": str(tmp_path / "nowhere")})
    assert status == 422
    assert "nowhere" in told["error"]["message"]


BAD = {
    b"": 400,
    b"{": 400,
    b"[1]": 400,
    b'{"row": {"age": NaN}}': 400,
    b'{"row": {"age": 1e999}}': 422,
    b"[" * 100_000: 400,
    b'{"row": {"age": "old"}}': 422,
    b'{"row": {"age": {"a": 1}}}': 422,
    b'{"row": {"page": [[1]]}}': 422,
    b'{"row": {"page": ["a"]}}': 422,
    b'{"row": {"": 1}}': 422,
    b'{"row": {"page": "\\u0000hash:00"}}': 422,
    b'{"row": {"page": "\\ud800"}}': 422,
    b'{"row": {"\\ud800": 1}}': 422,
    b'{"rows": []}': 422,
    b'{"rows": {"page": "a"}}': 422,
    b'{"rows": [7]}': 422,
    b'{"row": {}, "rows": [{}]}': 422,
    b'{"row": {}, "id": 1, "ids": [2]}': 422,
    b'{"rows": [{"page": "a"}], "ids": [1, 2]}': 422,
    b'{"rows": [{"page": "a"}], "ids": [[]]}': 422,
    b'{"rows": [{"page": "a"}], "ids": ["\\ud800"]}': 422,
    b'{"rows": [{"page": "a"}], "idz": ["b"]}': 422,
    b'{"row": {"age": %s}}' % (b"9" * 5000): 400,
    b'{"row": {"page": "%s"}}' % (b"x" * 2000): 413,
    b'{"rows": [%s{}]}' % (b"{}," * 50): 413,
    b'{"row": {%s "a": 1}}' % b"".join(b'"c%d": 1,' % n for n in range(60)): 413,
    b'{"rows": [%s{}]}' % b"".join(b'{"page": "n%d"},' % n for n in range(40)): 413,
}


@pytest.mark.parametrize("path", ["/predict", "/observe"])
@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:40].decode())
def test_bad_bodies_are_refused_and_nothing_is_written(strict, path, body):
    status, told = strict("POST", path, body)
    if path == "/predict" and b'"n1"' in body:
        assert status == 200  # a prediction brings nothing
        return
    assert status == BAD[body], told
    assert told["error"].keys() == {"message", "field", "remedy"}
    assert strict.live.log.head() == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"ids": ["nobody"], "labels": [1]}, 404),
        ({"ids": ["a"], "labels": ["never seen"]}, 422),
        ({"ids": ["a"], "labels": [None]}, 422),
        ({"ids": ["a"], "labels": [[1, 0]]}, 422),
        ({"ids": ["a", "b"], "labels": [1]}, 422),
        ({"ids": ["a", "a"], "labels": [1, 0]}, 422),
        ({"labels": [1]}, 422),
        ({"ids": ["a"], "id": "b", "labels": [1]}, 422),
        ({"ids": ["a"], "labels": [1], "label": 0}, 422),
        ({"rows": [{"page": "a"}], "labels": [2]}, 422),
        ({"ids": ["a"], "labels": [1], "revise": "yes"}, 422),
    ],
)
def test_bad_labels_are_refused(strict, body, status):
    found, told = strict("POST", "/labels", body)
    assert found == status, told
    assert strict.live.log.head() == 1


@pytest.mark.parametrize(
    "told", [{}, {"to": 0, "at": 9e9}, {"at": True}, {"at": 10**400}, {"to": 2}]
)
def test_no_moment_or_two_are_refused(strict, told):
    assert strict("POST", "/rollback", told)[0] == 422
    assert strict.live.log.head() == 1


def test_rows_of_which_no_column_can_be_made_are_not_written(strict):
    """Each would do alone: without a look at all of them they would be durable, without effect."""
    for body in ({}, {"labels": [0, 1]}):
        rows = {"rows": [{"tags": "a"}, {"tags": ["b"]}], **body}
        status, told = strict("POST", "/labels" if body else "/observe", rows)
        assert (status, "'tags' mixes" in told["error"]["message"]) == (422, True)
    assert strict.live.log.head() == 1


@pytest.mark.parametrize(
    ("row", "field", "message"),
    [
        ({"page": "x" * 2000}, "page", "row 0 holds in 'page' a text of 2000 characters"),
        ({"tags": ["a", "x" * 2000]}, "tags", "row 0 holds in 'tags' a text of 2000 characters"),
        ({"page": "\0"}, "page", "row 0 holds in 'page' a character NUL"),
        ({"": 1}, "rows", "row 0 has as a column's name an empty text"),
        ({"x" * 2000: 1}, "rows", "row 0 has as a column's name a text of 2000 characters"),
    ],
)
def test_a_refusal_names_the_field(strict, row, field, message):
    told = strict("POST", "/predict", {"row": row})[1]["error"]
    assert (told["field"], told["message"]) == (field, message)


def test_large_bodies_are_not_read(serve):
    call = serve(limits=Limits(body_bytes=1000))
    headers = {"content-length": "9" * 15}
    assert call("POST", "/predict", b"{}", headers)[0] == 413
    assert call("POST", "/predict", b" " * 2000)[0] == 413
    assert call("POST", "/predict", b"no arrow", {"content-type": ARROW})[0] == 400


def test_new_features_are_rationed(serve):
    call = serve(limits=Limits(new_features=5))
    statuses = [call("POST", "/observe", {"row": {**ROW, "page": f"n{n}"}})[0] for n in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    assert call.headers[b"retry-after"] == b"1"
    assert call("POST", "/observe", {"row": ROW})[0] == 200  # nothing new in it


@pytest.mark.parametrize("graph", ["state", "batch", "auto"])
def test_predicted_rows_are_rationed_too_and_predicted_all_the_same(serve, graph):
    call = serve(limits=Limits(new_features=3), observe_requests=True)
    asked = [{"row": {**ROW, "page": f"n{n}"}, "id": n, "graph": graph} for n in range(5)]
    told = [call("POST", "/predict", body)[1] for body in asked]
    assert [answer["observed"] for answer in told] == [True] * 3 + [False] * 2
    assert call("POST", "/predict", {"row": ROW, "id": 9})[1]["observed"]  # nothing new in it
    assert call("POST", "/predict", {"rows": [{"tags": "a"}, {"tags": ["b"]}]})[0] == 200
    wait_for(lambda: call.live.position == call.live.log.head())
    assert call.live.bank.n_rows == 404
    assert call.live.refused == 0  # nothing is in the log without effect


def test_what_many_rows_bring_is_rationed_once(serve):
    call = serve(limits=Limits(new_features=5))
    shared = {"coupon": "none"}
    rows = (
        [{**ROW, **shared}] * 20 + [{"page": "a", **shared}] * 20 + [{"device": "desk", **shared}]
    )
    assert call("POST", "/observe", {"rows": rows})[0] == 200
    told = [{**ROW, "page": f"n{n}"} for n in range(4)] + [{"page": "n4"}, {"page": "n5"}]
    assert call("POST", "/observe", {"rows": told})[0] == 413
    assert call("POST", "/observe", {"rows": told[:4]})[0] == 200
    assert call("POST", "/observe", {"rows": told[4:]})[0] == 429
    assert call.live.bank.encoder.n_features - call.live.bank.n_observed == 5


def test_the_rate_of_many_predictions_has_no_ceiling(monkeypatch):
    metrics, clock = Metrics(), iter(n / 2000 for n in range(10**6))
    monkeypatch.setattr("openfate.serving.metrics.time.monotonic", lambda: next(clock))
    for _ in range(20_000):
        metrics.answered("/predict", 200, 0.001)
    assert metrics.now()["rate"] == pytest.approx(2000, rel=0.01)


def test_tokens_open_what_they_are_for(serve):
    tokens = {
        "reader": ("r" * 20, ("predict",)),
        "writer": ("w" * 20, ("predict", "observe")),
        "owner": ("o" * 20, ("predict", "observe", "admin")),
    }
    call = serve(clients=Clients(tokens))

    def as_(letter):
        return {"Authorization": f"Bearer {letter * 20}"}

    body = {"row": ROW}
    assert call("POST", "/predict", body)[0] == 401
    assert call.headers[b"www-authenticate"] == b"Bearer"
    assert call("POST", "/predict", body, {"Authorization": "Basic " + "r" * 20})[0] == 401
    assert [call("POST", "/predict", body, as_(who))[0] for who in "xrwo"] == [401, 200, 200, 200]
    assert [call("POST", "/observe", body, as_(who))[0] for who in "rwo"] == [403, 200, 200]
    assert [call("POST", "/rollback", {"to": 0}, as_(who))[0] for who in "rwo"] == [403, 403, 200]
    assert call("GET", "/health")[0] == 200
    assert call("GET", "/metrics")[0] == 401


def test_a_log_that_cannot_be_written_is_told_and_comes_back(serve, monkeypatch):
    call = serve()
    call("POST", "/observe", {"row": ROW})

    def full(*_, **__):
        raise LogUnavailableError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(call.live.log, "append", full)
        status, told = call("POST", "/observe", {"row": ROW})
        assert (status, told["error"]["message"]) == (503, "the disk is full")
        assert call.headers[b"retry-after"] == b"1"
        assert call("GET", "/health")[1]["trouble"] == "the disk is full"
        assert call("GET", "/ready")[0] == 200  # predictions go on
        assert call("POST", "/predict", {"row": ROW})[0] == 200
    assert call("POST", "/observe", {"row": ROW})[1]["position"] == 2


def test_a_full_disk_takes_no_bundle_and_no_snapshot_until_there_is_room(serve, bundle):
    """The bundle was said to be none; the snapshot's thread died with a traceback."""
    call = serve()
    live, (soft, hard) = call.live, resource.getrlimit(resource.RLIMIT_FSIZE)
    call("POST", "/observe", {"row": ROW})
    live.snapshot_entries = 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert call("POST", "/bundle", {"path": str(bundle)})[0] == 503
        with pytest.raises(LogUnavailableError, match="cannot be written"):
            live._keep_bundle("another", bytes(2000))
        live._maintain()
        live._snapshot_thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    health = call("GET", "/health")[1]
    assert health["status"] == "degraded"
    assert "no snapshot could be kept" in health["trouble"]
    assert call("POST", "/observe", {"row": ROW})[1]["applied"]
    wait_for(lambda: call("GET", "/health")[1]["status"] == "ok")


def test_the_page_needs_nothing_from_elsewhere(serve):
    call = serve()
    for path in ("/", "/page.css", "/page.js"):
        status, content = call("GET", path)
        assert status == 200
        assert b"http://" not in content.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in content
    assert call("GET", "/nothing")[0] == 404
    assert call("GET", "/predict")[0] == 405


def test_every_endpoint_is_documented_with_examples(serve):
    _, told = serve()("GET", "/openapi.json")
    assert "/predict" in told["paths"]
    for path, methods in told["paths"].items():
        for method, about in methods.items():
            assert about["summary"]
            assert "422" in about["responses"]
            if method == "post":
                schema = about["requestBody"]["content"]["application/json"]["schema"]
                assert any("examples" in field for field in schema["properties"].values()), path


# ---- anything that a client may send -------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["a", "desk", "autumn", "new", "\0", "\ud800", "1e5", "2020-01-01"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
columns = st.sampled_from(["page", "device", "campaign", "age", "channel", "size", "", "\ud800"])
any_row = st.dictionaries(columns, scalars | st.lists(scalars, max_size=2) | values, max_size=5)
any_body = st.fixed_dictionaries(
    {},
    optional={
        "row": any_row | values,
        "rows": st.lists(any_row, max_size=3) | values,
        "id": scalars,
        "ids": st.lists(st.sampled_from(["a", "b", 1, 2]) | scalars, max_size=3) | values,
        "label": scalars,
        "labels": st.lists(st.sampled_from([0, 1]) | scalars, max_size=3) | values,
        "revise": values,
        "reasons": st.booleans() | values,
        "graph": st.sampled_from(["state", "auto", "batch"]) | values,
        "to": values,
        "at": values,
        "path": values,
    },
)


def check_answers(call, path, bodies, described):
    """Every answer has a status that OpenAPI tells, and a refusal says what to do."""
    status, told = call("POST", path, json.dumps(bodies).encode())
    assert str(status) in described["paths"][path]["post"]["responses"], (status, told)
    if status >= 400:
        assert told["error"].keys() == {"message", "field", "remedy"}
        assert status != 422 or "look at the service's log" not in told["error"]["remedy"], told


@pytest.mark.parametrize("n_bodies", [100, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_body_makes_an_error_of_ours(serve, n_bodies):
    call = serve()
    _, described = call("GET", "/openapi.json")

    @settings(max_examples=n_bodies, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["/predict", "/observe", "/labels", "/forget", "/rollback"]), any_body)
    def sends(path, body):
        check_answers(call, path, body, described)

    sends()
    assert call.live.trouble is None
    before, state = call.live.bank, call.live.log
    assert call.live.position == state.head()
    assert before.predict(ROW).shape == (1, 2)
