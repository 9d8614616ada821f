"""The service: a live bank behind HTTP.

    POST /predict    one row or many, JSON or Arrow           POST /forget     rows by id
    POST /observe    rows that teach what is new              POST /rollback   to a position or time
    POST /labels     labels by row id, or rows with labels    POST /bundle     another bundle
    GET  /schema  /features  /map  /worth  /events  /metrics  /health  /ready  /

Predictions read the bank and wait for nothing that is written.  What is observed is durable before
it is acknowledged, and the answer says whether the bank has learned from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

import polars as pl
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from openfate import __version__
from openfate.bank import FeatureBank, contributions, describe
from openfate.errors import DataFileError, InputError, OpenFATEError
from openfate.serving.api import DOCUMENTED
from openfate.serving.features import list_features, map_features
from openfate.serving.limits import (
    Clients,
    Limits,
    check_fields,
    read_ids,
    read_json,
    read_labels,
    read_rows,
    refuse,
)
from openfate.serving.live import ERRORS, BusyError, LiveBank, Ticket, make_table, quiet
from openfate.serving.log import LogUnavailableError, Operation, RefusedError
from openfate.serving.metrics import Mean, Metrics
from openfate.table import new_in_row

ARROW = "application/vnd.apache.arrow.stream"
_APPLIED_S = 1.0  # how long an answer waits for the bank to learn
_REASONS_ROWS = 20
_FEW_ROWS = 4  # are predicted at once, without a thread
# Of a body that is too large: how much is read, in limits, and for how long, before it is refused.
_DRAINED = 16
_DRAINED_S = 10.0
_log = logging.getLogger("openfate.serving")

Endpoint = Callable[[Request], Awaitable[Response]]


class Service:
    """The endpoints of a live bank.

    Parameters
    ----------
    live
        The bank and its log.
    clients, limits
        Who may send what.
    observe_requests
        Whether rows that are predicted are observed too, so that labels can follow by their ids.
    """

    def __init__(
        self,
        live: LiveBank,
        *,
        clients: Clients | None = None,
        limits: Limits | None = None,
        observe_requests: bool = False,
    ) -> None:
        self.live, self.clients = live, clients or Clients()
        self.limits, self.observe_requests = limits or Limits(), observe_requests
        self.metrics, self.stopping = Metrics(), asyncio.Event()
        # What was predicted for the last class, and the share of cells that were new.
        self.means = {name: Mean() for name in ("used", "ignored", "new_cells")}

    # ---- predicting ----------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        """Predict rows; new columns and values are used."""
        if request.headers.get("content-type", "").startswith(ARROW):
            body = await read_body(request, 16 * self.limits.body_bytes)
            return Response(await asyncio.to_thread(self._predict_arrow, body), media_type=ARROW)
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("row", "rows", "id", "ids", "reasons", "graph"))
        rows = read_rows(told, self.limits)
        graph, reasons = told.get("graph", "state"), told.get("reasons", False)
        if graph not in ("state", "auto", "batch"):
            refuse(f"graph is {str(graph)[:40]!r}", "graph", "choose state, auto or batch")
        if reasons not in (False, True) or (reasons and len(rows) > _REASONS_ROWS):
            refuse("reasons", "reasons", f"give true with at most {_REASONS_ROWS} rows")
        bank = self.live.bank.copy()  # of one moment
        ids = read_ids(told, len(rows), self.limits)
        if len(rows) <= _FEW_ROWS and not reasons:
            answers = [self._answer(bank, row, graph) for row in rows]
        else:
            answers = await asyncio.to_thread(self._answer_many, bank, rows, graph, reasons)
        answer: dict[str, Any] = {
            "classes": [str(name) for name in bank.classes],
            "predictions": [told for told, _ in answers],
            "position": self.live.position,
        }
        if self.observe_requests:
            answer["observed"] = await self._observe_served(request, bank, rows, ids, answers)
        return Response(json.dumps(answer), media_type="application/json")

    def _answer(self, bank: FeatureBank, row: dict[str, Any], graph: Any) -> tuple[Any, Any]:
        """What is told of one row, and what was served."""
        call = bank.answer(row, graph, policies=quiet(bank.policies))
        return self._tell(bank, row, call, 0)

    def _answer_many(
        self, bank: FeatureBank, rows: Sequence[dict[str, Any]], graph: Any, reasons: bool
    ) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = [({}, None)] * len(rows)
        policies = quiet(bank.policies)
        for places in alike(rows):
            table = make_table([rows[at] for at in places])
            call = bank.run(table, graph, policies=policies)
            why = contributions(bank, table, graph, policies=policies) if reasons else None
            for at, place in enumerate(places):
                found[place] = self._tell(bank, rows[place], call, at)
                if why is not None:
                    found[place][0]["reasons"] = _reasons(why, at)
        return found

    def _tell(
        self, bank: FeatureBank, row: Mapping[str, Any], call: Any, at: int
    ) -> tuple[dict[str, Any], Any]:
        outputs, ignored = call.outputs[at].tolist(), call.P0[at].tolist()
        encoder, X, first = call.encoder, call.X, bank.n_observed
        ids = X.ids[X.row_ptr[at] : X.row_ptr[at + 1]]
        names = encoder.schema.names
        met = {names[field] for field in encoder.field_at[ids].tolist()} | {*bank.exclude}
        features = ids.tolist()
        n_known = bank.encoder.n_features if max(features, default=0) >= first else 0
        new = [encoder.describe(feature) for feature in features if first <= feature < n_known]
        unknown = [name for name, cell in row.items() if cell is not None and name not in met]
        counts, means, n_new = self.metrics.counts, self.means, len(new) + len(unknown)
        counts["predicted_rows"] += 1
        counts["predicted_cells"] += len(row)
        counts["predicted_new_cells"] += n_new
        means["used"].add(outputs[-1])
        means["ignored"].add(ignored[-1])
        means["new_cells"].add(n_new / max(1, len(row)))
        key = "value" if bank.task == "regression" else "probabilities"
        told = {
            key: outputs[0] if key == "value" else outputs,
            "ignored": ignored[0] if key == "value" else ignored,
            "new": [{"field": field, "value": value} for field, value in new],
            "unknown": unknown,
        }
        return told, [outputs, ignored]

    async def _observe_served(
        self,
        request: Request,
        bank: FeatureBank,
        rows: Sequence[dict[str, Any]],
        ids: Sequence[str | None],
        answers: Sequence[tuple[Any, Any]],
    ) -> bool:
        """Observe what was predicted, durable when this is true; a prediction never fails by it."""
        hidden = [bank.encoder.hide(row) for row in rows]
        served = [what for _, what in answers]
        told = {"kind": "observe", "rows": hidden, "ids": list(ids), "served": served}
        try:
            await self._ration(request, bank, rows)
            ticket = self.live.submit(told)
            if any(name is not None for name in ids):
                await asyncio.wrap_future(ticket.durable)
        except OpenFATEError:
            return False
        return True

    def _predict_arrow(self, body: bytes) -> bytes:
        try:
            frame = pl.read_ipc_stream(io.BytesIO(body))
        except ERRORS as error:
            refuse(f"no Arrow stream ({str(error)[:200]})", "body", f"send {ARROW}", 400)
        if len(frame.columns) > self.limits.columns:
            refuse(f"{len(frame.columns)} columns", "body", f"give at most {self.limits.columns}")
        bank = self.live.bank
        policies = quiet(bank.policies)
        outputs = bank.predict(frame, graph="state", single=True, policies=policies)
        names = [str(name) for name in bank.classes] or ["prediction"]
        self.metrics.counts["predicted_rows"] += len(frame)
        out = io.BytesIO()
        columns = {name: outputs[:, at] for at, name in enumerate(names)}
        pl.DataFrame(columns).write_ipc_stream(out)
        return out.getvalue()

    # ---- learning ------------------------------------------------------------------------------

    async def observe(self, request: Request) -> Response:
        """Take in rows; durable when this answers."""
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("row", "rows", "id", "ids"))
        rows = read_rows(told, self.limits)
        ids = read_ids(told, len(rows), self.limits)
        return await self._take_rows(request, {"kind": "observe", "ids": ids}, rows)

    async def labels(self, request: Request) -> Response:
        """Take in labels of rows by id, or rows with their labels; durable when this answers."""
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("row", "rows", "id", "ids", "label", "labels", "revise"))
        bank = self.live.bank
        if "row" in told or "rows" in told:
            rows = read_rows(told, self.limits)
            ids, labels = read_ids(told, len(rows), self.limits), read_labels(told, len(rows))
            _check_labels(bank, labels)
            operation = {"kind": "labelled", "ids": ids, "labels": labels}
            return await self._take_rows(request, operation, rows)
        ids = read_ids(told, None, self.limits)
        labels = read_labels(told, len(ids))
        _check_labels(bank, labels)
        if told.get("revise", False) not in (False, True):
            refuse("revise is no boolean", "revise", "give true or false")
        revise = {"revise": True} if told.get("revise") else {}
        told = {"kind": "label", "ids": ids, "labels": labels, **revise}
        return await self._submit(request, told)

    async def _take_rows(
        self, request: Request, operation: Operation, rows: list[dict[str, Any]]
    ) -> Response:
        bank = self.live.bank
        await self._ration(request, bank, rows)
        self.metrics.counts["observed_rows"] += len(rows)
        operation["rows"] = [bank.encoder.hide(row) for row in rows]
        return await self._submit(request, operation)

    async def _ration(
        self, request: Request, bank: FeatureBank, rows: Sequence[dict[str, Any]]
    ) -> None:
        """Refuse more new features than a client may bring, and rows that cannot be learned."""
        most = self.limits.new_features
        if len(rows) <= _FEW_ROWS:
            n_new = count_new(bank, rows, most)
        else:
            n_new = await asyncio.to_thread(count_new, bank, rows, most)
        self.clients.count_new(request.state.client, n_new, most)

    async def forget(self, request: Request) -> Response:
        """Forget rows by id: their values leave the log, and the state is replayed without them."""
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("id", "ids"))
        ids = read_ids(told, None, self.limits)
        return await self._submit(request, {"kind": "forget", "ids": list(dict.fromkeys(ids))})

    async def rollback(self, request: Request) -> Response:
        """Go back to the state of a position of the log, or of a time."""
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("to", "at"))
        to, at = told.get("to"), told.get("at")
        # WHY: true is 1 to Python, and the beginning of 1970 would take back everything.
        if isinstance(at, bool):
            at = None
        if isinstance(at, int | float) and "to" not in told and abs(at) < 1e15:
            to = await asyncio.to_thread(self.live.log.moment, float(at))
        elif "at" in told or type(to) is not int or abs(to) >= 1 << 62:
            refuse(
                "there is no moment, or not one alone",
                "to",
                'give "to", a position, or "at", seconds since 1970',
            )
        return await self._submit(request, {"kind": "rollback", "to": to})

    async def bundle(self, request: Request) -> Response:
        """Go over to another bundle; the log is replayed on it while the old one serves."""
        told = read_json(await read_body(request, self.limits.body_bytes))
        check_fields(told, ("path",))
        if not isinstance(told.get("path"), str) or "\0" in told["path"]:
            refuse("path is no text", "path", "give the folder of a bundle on this machine")
        try:
            ticket = await asyncio.to_thread(self.live.take_bundle, told["path"])
        except (InputError, DataFileError) as error:
            remedy = "give the folder of a bundle on this machine"
            if self.live.trains:
                remedy += ", and first put its rows where this process reads them (train)"
            refuse(str(error)[:300], "path", remedy)
        return await self._settle(ticket)

    async def _submit(self, request: Request, operation: Operation) -> Response:
        key = request.headers.get("idempotency-key")
        if key is not None:
            if not 0 < len(key) <= self.limits.value_length or "\0" in key:
                refuse("the key is empty or too long", "Idempotency-Key", "send a UUID")
            operation["key"] = f"{request.state.client}:{key}"
        if operation["kind"] == "rollback":  # it looks into the log first
            return await self._settle(await asyncio.to_thread(self.live.submit, operation))
        return await self._settle(self.live.submit(operation))

    async def _settle(self, ticket: Ticket) -> Response:
        """Answer when an operation is durable, and, within a second, learned from."""
        receipt = await asyncio.wrap_future(ticket.durable)
        applied = asyncio.wrap_future(ticket.applied)
        try:
            why = await asyncio.wait_for(asyncio.shield(applied), _APPLIED_S)
        except TimeoutError:
            is_applied = False
        else:
            is_applied = True
            if why is not None:
                refuse(
                    f"the rows cannot be learned from ({why[:300]})",
                    "rows",
                    "correct them, and send them with new ids; they are in the log without effect",
                )
        return JSONResponse(
            {
                "position": receipt.position,
                "applied": is_applied,
                "repeated": receipt.repeated,
                "known": receipt.is_repeated,
            }
        )

    # ---- telling -------------------------------------------------------------------------------

    async def schema(self, request: Request) -> Response:
        """What the bank is: fields, features, policies, weights of the ways to predict."""
        bank = self.live.bank
        told = await asyncio.to_thread(describe, bank)
        told.pop("meta")
        return JSONResponse({**told, "usage": bank.describe_usage(), "bundle": self.live.bundle})

    async def features(self, request: Request) -> Response:
        """Features with counts, effect and nearest known ones."""
        new = _flag(request, "new")
        most = _number(request, "limit", 50, 1000)
        neighbours = _number(request, "nearest", 3, 20)
        listed = partial(list_features, new=new, most=most, neighbours=neighbours)
        found = await asyncio.to_thread(listed, self.live.bank, self.live.worth.said)
        return JSONResponse({"features": found})

    async def map(self, request: Request) -> Response:
        """Features as points in a plane."""
        return JSONResponse(await asyncio.to_thread(map_features, self.live.bank))

    async def worth(self, request: Request) -> Response:
        """Scores of what was predicted, new features used and ignored, as labels came in."""
        worth = self.live.worth
        return JSONResponse(
            {
                "points": list(worth.points),
                "calibration": worth.calibration(),
                "labels": worth.n_labels,
                **worth.scores(),
            }
        )

    def status(self) -> dict[str, Any]:
        """What the page shows of this moment."""
        live, bank = self.live, self.live.bank
        return {
            "position": live.position,
            "replays": live.replays,
            "rows": bank.n_rows,
            "new_features": bank.encoder.n_features - bank.n_observed,
            "labels": live.worth.n_labels,
            "refused": live.refused,
            **self.metrics.now(),
        }

    async def events(self, request: Request) -> Response:
        """The status once a second, as server-sent events."""

        async def stream() -> AsyncIterator[str]:
            while not self.stopping.is_set():
                yield f"data: {json.dumps(self.status())}\n\n"
                try:
                    await asyncio.wait_for(self.stopping.wait(), 1.0)
                except TimeoutError:
                    continue

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def health(self, request: Request) -> Response:
        """Whether the process works, and what is wrong with its log."""
        live = self.live
        trouble = live.trouble or live.unwritten or live.unkept
        damage = asdict(live.log.damage)
        damage["lost"] = len(damage["lost"])
        return JSONResponse(
            {
                "status": "ok" if trouble is None else "degraded",
                "version": __version__,
                "bundle": live.bundle,
                "trouble": trouble,
                "damage": damage,
                "trainings": live.trainings,
                "untrained": live.untrained,
                **self.status(),
            }
        )

    async def ready(self, request: Request) -> Response:
        """Whether it takes requests: the log can be followed, and not too much waits.

        A log that cannot be written, on a disk that is full, does not count: predictions go on.
        """
        live = self.live
        is_ready = live.trouble is None and live.lag < live.most_waiting
        if not is_ready:
            return JSONResponse({"ready": False}, 503, {"retry-after": "1"})
        return JSONResponse({"ready": True})

    async def show_metrics(self, request: Request) -> Response:
        """Everything that is counted, in Prometheus' text format."""
        live, bank = self.live, self.live.bank.copy()  # of one moment
        worth, evidence, mixture = live.worth, bank.evidence, bank.mixture
        scores = {
            f'{{features="{way}",score="{name}"}}': value
            for way, found in worth.scores().items()
            for name, value in found.items()
        }
        weights = {} if mixture is None or not mixture.n_labels else mixture.describe()
        calibration = {f'{{from="{one["from"]}"}}': one for one in worth.calibration()}
        text = self.metrics.expose(
            {
                "log_position": live.position,
                "log_lag": live.lag,
                "log_refused": live.refused,
                "rows": bank.n_rows,
                "new_features": bank.encoder.n_features - bank.n_observed,
                "new_cell_share": self.means["new_cells"].recent,
                "labels": worth.n_labels,
                "evidence_strength": None if evidence is None else evidence.fixed.strength,
                "weight": {f'{{way="{name}"}}': weight for name, weight in weights.items()},
                "served_mean": {
                    f'{{features="{n}"}}': self.means[n].recent for n in ("used", "ignored")
                },
                # The last thousand predictions against all of them.
                "drift": {f'{{of="{name}"}}': mean.drift for name, mean in self.means.items()},
                "calibration_predicted": {at: bin["predicted"] for at, bin in calibration.items()},
                "calibration_happened": {at: bin["happened"] for at, bin in calibration.items()},
                "score": scores,
            }
        )
        return Response(text, media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        """The page, and the two files that it needs."""
        name = request.url.path.removeprefix("/") or "index.html"
        kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
        content = (files("openfate.serving") / "page" / name).read_bytes()
        headers = {
            "content-security-policy": "default-src 'self'; img-src data:; "
            "style-src 'self' 'unsafe-inline'",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        return Response(content, media_type=kind[name.rpartition(".")[2]], headers=headers)


# ---- requests ------------------------------------------------------------------------------------


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request, of at most so many bytes.

    WHY the rest of a larger one is read too, in measure: most clients look for an answer when they
    have sent all.  Where the connection is closed before that they are told of a broken connection,
    and not what to do.
    """
    told = request.headers.get("content-length", "0")
    is_large = told.isdigit() and int(told) > most
    parts: list[bytes] = []
    size, has_more = 0, True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAINED_S if is_large else None) as patience:
            while has_more and size <= _DRAINED * most:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    refuse("the body has no end", "body", "send all of it", 400)
                part, has_more = message.get("body", b""), message.get("more_body", False)
                size += len(part)
                if size <= most:
                    parts.append(part)
                elif not is_large:
                    is_large = True
                    patience.reschedule(asyncio.get_running_loop().time() + _DRAINED_S)
    if is_large:
        refuse(f"the body has more than {most} bytes", "body", f"send at most {most}", 413)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def alike(rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Places of rows with the same columns."""
    groups: dict[frozenset[str], list[int]] = {}
    for at, row in enumerate(rows):
        groups.setdefault(frozenset(row), []).append(at)
    return list(groups.values())


def count_new(bank: FeatureBank, rows: Sequence[dict[str, Any]], enough: int) -> int:
    """How many new features rows bring, or as many as are too many; refuses what cannot be taken.

    Parameters
    ----------
    enough
        More than so many need not be counted.
    """
    if len(rows) == 1 and (n_new := _count_new_in_row(bank, rows[0])) is not None:
        return n_new
    encoder, policies = bank.encoder, quiet(bank.policies)
    brought = set[tuple[str, str]]()  # rows of other columns may bring the same
    n_most = 0
    for places in alike(rows):
        some = [rows[at] for at in places]
        if len(some) == 1 and _count_new_in_row(bank, some[0]) == 0:
            continue
        grown = bank.grow_encoder(make_table(some), policies=policies)
        n_most = max(n_most, grown.n_features - encoder.n_features)
        if max(n_most, len(brought)) <= enough:
            brought |= {grown.describe(id) for id in range(encoder.n_features, grown.n_features)}
    return max(n_most, len(brought))


def _count_new_in_row(bank: FeatureBank, row: dict[str, Any]) -> int | None:
    """The same for one row; None where it takes a frame: lists, dates, what a policy refuses."""
    cells = {name: cell for name, cell in row.items() if name not in bank.exclude}
    found = bank.encoder.look_up(cells)
    if found is None:
        return None
    new = new_in_row(bank.encoder, cells, found, quiet(bank.policies), bank.overrides)
    return None if new is None else len(new)


def _check_labels(bank: FeatureBank, labels: Sequence[Any]) -> None:
    try:
        bank.read_labels(labels, len(labels))
    except ERRORS as error:
        refuse(f"labels cannot be used ({str(error)[:300]})", "labels", "give labels as in fit")


def _reasons(why: Mapping[str, Sequence[Any]], row: int) -> list[dict[str, Any]]:
    """What pushed one row, the strongest first."""
    found = [
        {name: why[name][at] for name in ("field", "value", "new", "effect")}
        | {"output": str(why["output"][at])}
        for at, of in enumerate(why["row"])
        if of == row
    ]
    return sorted(found, key=lambda one: -abs(one["effect"]))


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        refuse(f"{name} is {text[:40]!r}", name, "give true or false")
    return text == "true"


def _number(request: Request, name: str, usual: int, most: int) -> int:
    text = request.query_params.get(name, str(usual))
    if not (text.isascii() and text.isdigit() and int(text[:9]) <= most):
        refuse(f"{name} is {text[:40]!r}", name, f"give an integer from 0 to {most}")
    return int(text)


def _error(status: int, message: str, field: str, remedy: str) -> JSONResponse:
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    told = {"error": {"message": message, "field": field, "remedy": remedy}}
    # WHY ascii: half a surrogate pair, which a client may have sent, has no UTF-8
    return Response(  # type: ignore[return-value]
        json.dumps(told), status, headers=headers, media_type="application/json"
    )


def guarded(service: Service, path: str, scope: str | None, endpoint: Endpoint) -> Endpoint:
    """An endpoint that asks for a token, counts, and answers every error with what to do."""

    async def guard(request: Request) -> Response:
        began = time.perf_counter()
        address = request.client.host if request.client else "unknown"
        request.state.client = address
        response: Response
        try:
            if scope is not None:
                given = request.headers.get("authorization")
                request.state.client = service.clients.identify(given, address, scope)
            response = await endpoint(request)
        except RefusedError as error:
            response = _error(error.status, error.message, error.field, error.remedy)
        except (BusyError, LogUnavailableError, OSError) as error:
            response = _error(503, str(error), "service", "try again, with the same keys and ids")
        except (InputError, OpenFATEError) as error:
            response = _error(422, str(error), "rows", "correct it as the message says")
        except ERRORS as error:
            _log.exception("unexpected")
            what = f"the request cannot be answered ({type(error).__name__})"
            response = _error(422, what, "body", "look at the service's log")
        took = time.perf_counter() - began
        service.metrics.answered(path, response.status_code, took)
        if response.status_code >= 400 or scope in ("observe", "admin"):
            told = {
                "at": round(time.time(), 3),
                "client": request.state.client,
                "path": path,
                "status": response.status_code,
                "ms": round(1e3 * took, 2),
            }
            _log.info(json.dumps(told))
        return response

    guard.__name__, guard.__doc__ = endpoint.__name__, endpoint.__doc__
    return guard


class Shortcut:
    """Requests of known paths go to their endpoints at once, all others to the application.

    WHY: FastAPI's own way to an endpoint takes longer than the prediction of a row.  Its routes
    tell OpenAPI what there is, and answer what is not.
    """

    def __init__(self, app: Any, endpoints: Mapping[tuple[str, str], Endpoint]) -> None:
        self.app, self.endpoints = app, endpoints

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request, or the beginning and end of the service."""
        endpoint = None
        if scope["type"] == "http":
            endpoint = self.endpoints.get((scope["method"], scope["path"]))
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def make_app(service: Service, *, on_start: Callable[[], None] = lambda: None) -> FastAPI:
    """The application of a service; closes the live bank when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        on_start()
        yield
        service.stopping.set()
        await asyncio.to_thread(service.live.close)

    app = FastAPI(
        title="OpenFATE",
        version=__version__,
        description="Predictions that keep working when new columns and new values appear.",
        lifespan=lifespan,
        docs_url=None,  # WHY: both load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    routes: list[tuple[str, str, str | None, Endpoint]] = [
        ("POST", "/predict", "predict", service.predict),
        ("POST", "/observe", "observe", service.observe),
        ("POST", "/labels", "observe", service.labels),
        ("POST", "/forget", "admin", service.forget),
        ("POST", "/rollback", "admin", service.rollback),
        ("POST", "/bundle", "admin", service.bundle),
        ("GET", "/schema", "predict", service.schema),
        ("GET", "/features", "predict", service.features),
        ("GET", "/map", "predict", service.map),
        ("GET", "/worth", "predict", service.worth),
        ("GET", "/events", "predict", service.events),
        ("GET", "/metrics", "predict", service.show_metrics),
        ("GET", "/health", None, service.health),
        ("GET", "/ready", None, service.ready),
    ]
    endpoints = {
        (method, path): guarded(service, path, scope, endpoint)
        for method, path, scope, endpoint in routes
    }
    for (method, path), endpoint in endpoints.items():
        told = DOCUMENTED.get(path, {})
        app.add_api_route(path, endpoint, methods=[method], response_model=None, **told)
    app.add_middleware(Shortcut, endpoints=endpoints)
    for path in ("/", "/page.css", "/page.js"):
        app.add_api_route(path, guarded(service, path, None, service.page), include_in_schema=False)

    @app.exception_handler(HTTPException)
    async def tell(request: Request, error: HTTPException) -> Response:
        remedy = "see /openapi.json for what there is"
        return _error(error.status_code, str(error.detail), "path", remedy)

    return app
