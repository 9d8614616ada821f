"""What OpenAPI says of the endpoints: the bodies, with examples, and the answers.

WHY by hand: requests are read by `openfate.serving.limits`, which is quicker and refuses more; the
models here are for those who write clients.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=1000)]
Cell = Text | float | bool | None | Annotated[list[Text | float | None], Field(max_length=1000)]
Row = dict[Annotated[str, Field(min_length=1, max_length=1000)], Cell]
Rows = Annotated[list[Row], Field(min_length=1, max_length=10_000)]
Id = Annotated[str, Field(min_length=1, max_length=1000)] | int
Ids = Annotated[list[Id], Field(min_length=1, max_length=10_000)]
_ROW = {"page": "home", "campaign": "spring", "age": 31}


def _one_of(*names: str) -> ConfigDict:
    """A body that has one of some fields."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [name]} for name in names]})


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictBody(_Body):
    """Rows to predict: "row" or "rows"."""

    model_config = _one_of("row", "rows")
    row: Row = Field({}, examples=[_ROW])
    rows: Rows = []
    id: Id | None = None
    ids: list[Id | None] | None = None
    reasons: bool = Field(False, description="Which features pushed each row.")
    graph: Literal["state", "auto", "batch"] = Field(
        "state", description="See FeatureBank.predict."
    )


class ObserveBody(_Body):
    """Rows that teach what is new; an id lets a label follow."""

    rows: Rows = Field(examples=[[_ROW]])
    ids: list[Id | None] | None = Field(None, examples=[["visit-1"]])


class LabelsBody(_Body):
    """Labels of rows by id; or rows with their labels."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["ids"]}, {"required": ["rows"]}]}
    )
    ids: Ids = Field([], examples=[["visit-1"]])
    labels: list[Any] = Field(examples=[[1]])
    rows: Rows = []
    revise: bool = Field(False, description="Replace labels that came before.")


class ForgetBody(_Body):
    """Rows to forget."""

    ids: Ids = Field(examples=[["visit-1"]])


class RollbackBody(_Body):
    """A moment: a position of the log, or seconds since 1970."""

    model_config = _one_of("to", "at")
    to: int = Field(0, ge=0, examples=[120])
    at: float = 0.0


class BundleBody(_Body):
    """A bundle on the service's machine."""

    path: str = Field(examples=["/srv/models/tuesday"])


class ErrorDetail(BaseModel):
    """What was wrong, and what to do."""

    message: str
    field: str
    remedy: str


class ErrorAnswer(BaseModel):
    """Of every status from 400 up."""

    error: ErrorDetail


class Acknowledged(BaseModel):
    """It is durable; applied: the bank has learned from it."""

    position: int
    applied: bool
    repeated: int
    known: bool


_FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        400: "No JSON",
        401: "No token",
        403: "The token is not for this",
        404: "No such row",
        409: "An id is that of another row, or has another label",
        413: "Too much at once",
        422: "Something in it cannot be used",
        429: "Too many new features within a minute",
        503: "Busy, or the log cannot be reached: try again",
    }.items()
}


def _document(body: type[BaseModel] | None, summary: str, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": summary, "responses": {**_FAULTS, **more}}
    if body is not None:
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        told["openapi_extra"] = {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        }
    return told


def _parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_OK: dict[str, Any] = {"model": Acknowledged, "description": "Durable"}
_STATUS: dict[int | str, dict[str, Any]] = {200: _OK, **_FAULTS}

DOCUMENTED: dict[str, dict[str, Any]] = {
    "/predict": _document(PredictBody, "Predict one row or many"),
    "/observe": {**_document(ObserveBody, "Rows teach what is new"), "responses": _STATUS},
    "/labels": {**_document(LabelsBody, "Labels that have come"), "responses": _STATUS},
    "/forget": {**_document(ForgetBody, "Forget rows"), "responses": _STATUS},
    "/rollback": {**_document(RollbackBody, "Go back to a moment"), "responses": _STATUS},
    "/bundle": {**_document(BundleBody, "Take another bundle"), "responses": _STATUS},
    "/schema": _document(None, "What the bank is"),
    "/features": {
        **_document(None, "Features, their rows and effects"),
        "openapi_extra": {
            "parameters": [
                _parameter("new", {"type": "boolean", "default": False}),
                _parameter("limit", {"type": "integer", "minimum": 0, "maximum": 1000}),
                _parameter("nearest", {"type": "integer", "minimum": 0, "maximum": 20}),
            ]
        },
    },
    "/map": _document(None, "Features as points in a plane"),
    "/worth": _document(None, "Used against ignored, over time"),
    "/events": _document(None, "The status once a second"),
    "/metrics": _document(None, "Prometheus"),
    "/health": _document(None, "Whether it works"),
    "/ready": _document(None, "Whether it takes requests"),
}
