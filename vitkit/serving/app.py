"""The HTTP API of a model: FastAPI describes and routes it, the guard stands before it, the batcher answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from vitkit import __version__
from vitkit.errors import CannotRead, InputError
from vitkit.models.names import find_name
from vitkit.predictor import Prediction
from vitkit.serving import schemas
from vitkit.serving.batcher import Refused
from vitkit.serving.bodies import LARGE, Gone, Picture, Problem, Room, read_body, take_apart
from vitkit.serving.decoding import Header
from vitkit.serving.documentation import describe
from vitkit.serving.engine import Answer, Engine, Look, Outputs, Search, Task
from vitkit.serving.guard import ACCEPTED, Guard, in_words
from vitkit.serving.settings import Hosts, Keys, Limits
from vitkit.serving.thumbnails import Thumbnails

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_DOCS_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
)
_STATIC = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/ways.js": ("ways.js", "text/javascript"),
}


def make_app(engine: Engine, keys: Keys, hosts: Hosts, limits: Limits | None = None) -> Guard:
    """Return the API of a model as an ASGI application; closing the engine is up to the caller."""
    limits = limits or Limits()
    api = FastAPI(
        title="vitkit",
        version=__version__,
        description=f'{engine.predictor.name} over HTTP. Errors are {{"error": "..."}}.',
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    _add_errors(api)
    _add_state(api, engine, keys, limits)
    _add_computed(api, engine, limits)
    _add_pages(api)
    _correct_description(api, keys)
    return Guard(api, engine.batcher, engine.metrics, hosts, keys, limits)


def _add_errors(api: FastAPI) -> None:
    """Answer what FastAPI finds wrong as everything else is answered."""

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return JSONResponse({"error": f"{name}: {first['msg']}"}, 400)

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: f"no such page: {request.url.path}", 405: f"{request.method} is not for this page"}
        return JSONResponse(
            {"error": words.get(error.status_code, str(error.detail))},
            error.status_code,
            headers=error.headers,
        )

    async def problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        headers, body = in_words(error)
        return Response(body, error.status, headers)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # which nobody reads

    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the server failed: see its log"}, 500)

    api.add_exception_handler(Problem, problem)
    api.add_exception_handler(Gone, gone)
    api.add_exception_handler(Exception, failed)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, known)


def _answers(
    model: Any, *statuses: int, media: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a page, for its description."""
    words = {
        400: "The request is broken, or no picture can be read.",
        401: "A key is missing or wrong.",
        403: "The request comes from a page of another site.",
        404: "It is not there.",
        408: "The request took too long to arrive.",
        413: "The request is too large.",
        415: "The content type is unknown.",
        421: "The Host header names another server.",
        501: "This model can't do that.",
        503: "It can't be answered in time; Retry-After says when it could.",
    }
    ok: dict[str, Any] = {"description": "Done."}
    ok |= {"model": model} if media is None else {"content": media}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": schemas.Error, "description": words[status]}
        for status in sorted({*_GUARDED, *statuses})
    }
    if 503 in errors:
        errors[503]["headers"] = {
            "Retry-After": {"schema": {"type": "integer"}, "description": "In seconds."}
        }
    return {200: ok, **errors}


def _unavailable(words: str) -> dict[int | str, dict[str, Any]]:
    return {503: {"model": schemas.Error, "description": words}}


_GUARDED = (403, 413, 421)
"What every page can answer with, since the guard does."
_COMPUTED = (400, 401, 408, 415, 501, 503)


def _add_state(api: FastAPI, engine: Engine, keys: Keys, limits: Limits) -> None:
    """Pages that say what the server is and how it does."""
    predictor = engine.predictor
    attention = engine.attention
    info = schemas.Info(
        model=predictor.name,
        architecture=find_name(predictor.model.config)
        or type(predictor.model.config).__name__.removesuffix("Config"),
        num_classes=len(predictor.class_names) if engine.can_classify else 0,
        multi_label=predictor.multi_label,
        image_size=predictor.preprocessing.size,
        key_required=bool(keys),
        attention=schemas.AttentionInfo(layers=attention.layers, heads=attention.heads)
        if attention
        else None,
        attention_reason=engine.attention_reason or None,
        search=None if engine.features is None else schemas.SearchInfo(images=len(engine.features)),
        max_bytes=limits.max_bytes,
        max_images=limits.max_images,
        latency_ms=1000 * engine.batcher.latency,
    ).model_dump()

    @api.get("/info", responses=_answers(schemas.Info))
    async def about() -> Response:
        """What is served, and its limits."""
        return JSONResponse(info)

    @api.get("/healthz", responses=_answers(schemas.Health) | _unavailable("It must be restarted."))
    async def health() -> Response:
        """Whether the process works: 503 if it must be restarted."""
        if engine.batcher.is_alive() or engine.batcher.is_closed:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"error": "the batcher has stopped"}, 503)

    @api.get("/readyz", responses=_answers(schemas.Health) | _unavailable("It shuts down."))
    async def ready() -> Response:
        """Whether requests are welcome: 503 while the server shuts down."""
        if engine.batcher.is_closed or engine.is_draining:
            return JSONResponse({"error": "the server is shutting down"}, 503)
        return JSONResponse({"status": "ready"})

    @api.get(
        "/metrics",
        responses=_answers(None, 401, media={"text/plain": {"schema": {"type": "string"}}}),
        response_class=Response,
    )
    async def metrics() -> Response:
        """Counters in Prometheus' text format, summed over all worker processes."""
        return PlainTextResponse(engine.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_computed(api: FastAPI, engine: Engine, limits: Limits) -> None:
    """Pages that the model answers."""
    many, one = _body(limits.max_images), _body(1)

    @api.post("/predict", responses=_answers(schemas.Predictions, *_COMPUTED), openapi_extra=many)
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=1_000_000)] = 5) -> Response:
        """The likeliest classes of pictures, each by itself."""
        if not engine.can_classify:
            raise Problem(
                501, f"{engine.predictor.name} has no classification head; /embed gives its features"
            )

        def row(picture: Picture, answer: Answer) -> dict[str, Any]:
            if not isinstance(answer, Outputs):
                return {"file": picture.name, "error": _words(answer)}
            return {"file": picture.name, "classes": [_class(guess) for guess in engine.classes(answer, top)]}

        pictures, answers = await _compute(request, engine, limits)
        return JSONResponse({"predictions": [row(*pair) for pair in zip(pictures, answers, strict=True)]})

    @api.post("/embed", responses=_answers(schemas.Embeddings, *_COMPUTED), openapi_extra=many)
    async def embed(request: Request) -> Response:
        """The features of pictures, what the head reads; all of them must be readable."""
        if engine.num_features is None:
            raise Problem(501, f"{engine.predictor.name} gives no features")
        pictures, answers = await _compute(request, engine, limits)
        rows = []
        for picture, answer in zip(pictures, answers, strict=True):
            if not isinstance(answer, Outputs) or answer.features is None:
                raise Problem(400, f"{picture.name}: {_words(answer)}")
            rows.append(answer.features.tolist())
        return JSONResponse({"embeddings": rows, "width": engine.num_features})

    @api.post(
        "/attention",
        responses=_answers(None, *_COMPUTED, media={"image/png": _BINARY}),
        response_class=Response,
        openapi_extra=one,
    )
    async def attention(
        request: Request,
        layer: Annotated[str, Query(pattern=r"^(rollout|[0-9]{1,3})$")] = "rollout",
        head: Annotated[str, Query(pattern=r"^(mean|[0-9]{1,3})$")] = "mean",
    ) -> Response:
        """Where the model looks in one picture, drawn over it: attention rollout, or a layer's heads, from 0."""
        if engine.attention is None:
            raise Problem(501, engine.attention_reason)
        look = Look(
            _number(layer, "layer", engine.attention.layers), _number(head, "head", engine.attention.heads)
        )
        [picture], [answer] = await _compute(request, engine, limits, look)
        if not isinstance(answer, bytes):
            raise Problem(400, f"{picture.name}: {_words(answer)}")
        return Response(answer, media_type="image/png")

    @api.post("/search", responses=_answers(schemas.Similar, *_COMPUTED), openapi_extra=one)
    async def search(request: Request, k: Annotated[int, Query(ge=1, le=100)] = 12) -> Response:
        """The images of the server's own set that are nearest to one picture, by the cosine of their features."""
        if engine.features is None:
            raise Problem(
                501, "this server was not given a file of features: vit serve MODEL --features FILE"
            )
        [picture], [answer] = await _compute(request, engine, limits, Search(k))
        if not isinstance(answer, tuple):
            raise Problem(400, f"{picture.name}: {_words(answer)}")
        return JSONResponse({"images": [vars(found) for found in answer]})

    thumbnails = None if engine.features is None else Thumbnails(engine.features)

    @api.get(
        "/thumbnail/{index}",
        responses=_answers(None, 400, 401, 404, 501, media={"image/jpeg": _BINARY}),
        response_class=Response,
    )
    async def thumbnail(index: Annotated[int, Path(ge=0, le=2**31)]) -> Response:
        """A small version of an image that /search found, by its index."""
        if thumbnails is None:
            raise Problem(
                501, "this server was not given a file of features: vit serve MODEL --features FILE"
            )
        try:
            content = await thumbnails.get(index)
        except InputError:
            raise Problem(404, f"image {index} is not there") from None
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _body(most: int) -> dict[str, Any]:
    """Return the description of a body with so many pictures at most."""

    def form(field: str, item: dict[str, str]) -> dict[str, Any]:
        items = {"type": "array", "minItems": 1, "maxItems": most, "items": item}
        return {
            "schema": {
                "type": "object",
                "required": [field],
                "additionalProperties": False,
                "properties": {field: items},
            }
        }

    base64 = {"type": "string", "format": "byte", "description": "A file in base64."}
    content = {
        "multipart/form-data": form("file", _BINARY["schema"]),
        "application/json": form("images", base64),
        "image/*": _BINARY,
    }
    return {"requestBody": {"required": True, "content": content}}


async def _compute(
    request: Request, engine: Engine, limits: Limits, task: Task = None
) -> tuple[list[Picture], list[Answer]]:
    """Return a request's pictures and what became of each; none that can be read is a Problem."""
    with Room(limits, engine.metrics) as room:
        body, arrived = await read_body(request.receive, room, limits)
        kind = request.headers.get("content-type", "")

        def read() -> tuple[list[Picture], list[Header | InputError]]:
            pictures = take_apart(kind, body, limits.max_images if task is None else 1)
            return pictures, [_header(engine, picture.data) for picture in pictures]

        pictures, headers = await asyncio.to_thread(read) if len(body) >= LARGE else read()
        wanted = [place for place, header in enumerate(headers) if isinstance(header, Header)]
        answers: list[Answer | Header] = [*headers]
        if wanted:
            try:
                future = engine.submit(
                    [pictures[place].data for place in wanted],
                    [header for header in headers if isinstance(header, Header)],
                    arrived,
                    task,
                )
            except Refused as refused:
                engine.metrics.add("vit_images_total", "refused", len(wanted))
                status = 413 if refused.retry_after is None else 503
                raise Problem(status, refused.reason, refused.retry_after) from None
            request.scope[ACCEPTED] = arrived, engine.bound(task), len(wanted)
            try:
                found = await asyncio.wrap_future(future)
            except Exception:
                engine.metrics.add("vit_images_total", "failed", len(wanted))
                raise
            for place, answer in zip(wanted, found, strict=True):
                answers[place] = answer
    known = [answer for answer in answers if not isinstance(answer, Header)]
    broken = [answer for answer in known if isinstance(answer, InputError)]
    engine.metrics.add("vit_images_total", "unreadable", len(broken))
    engine.metrics.add("vit_images_total", "answered", len(known) - len(broken))
    if len(broken) == len(known):
        words = _words(broken[0])
        raise Problem(
            400,
            words
            if len(known) == 1
            else f"none of the {len(known)} pictures can be read; the first: {words}",
        )
    return pictures, known


def _header(engine: Engine, data: bytes) -> Header | InputError:
    try:
        return engine.header(data)
    except InputError as error:
        return error


def _words(error: object) -> str:
    return error.reason if isinstance(error, CannotRead) else str(error)


def _class(guess: Prediction) -> dict[str, Any]:
    return {"name": guess.name, "index": guess.index, "probability": guess.probability}


def _number(text: str, name: str, count: int) -> int | None:
    """Return a layer or head, None for all of them."""
    if not text.isdigit():
        return None
    if int(text) >= count:
        raise Problem(400, f"{name} {text} is not there: the model has {count}, counted from 0")
    return int(text)


def _add_pages(api: FastAPI) -> None:
    """The page for people, and the description of the API."""
    folder = files("vitkit").joinpath("serving", "static")

    def add(path: str, content: bytes, kind: str) -> None:
        @api.get(path, include_in_schema=False)
        async def static() -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    for path, (name, kind) in _STATIC.items():
        add(path, folder.joinpath(name).read_bytes(), kind)

    @api.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(describe(api.openapi()), headers={"Content-Security-Policy": _DOCS_POLICY})


def _correct_description(api: FastAPI, keys: Keys) -> None:
    """Say in the description which pages need a key; remove the answer 422, which FastAPI adds and no page gives."""
    from vitkit.serving.guard import OPEN

    make: Callable[[], dict[str, Any]] = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is not None:
            return api.openapi_schema
        document = make()
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        if keys:
            document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if keys and path not in OPEN:
                    operation["security"] = [{"key": []}]
        return document

    api.openapi = openapi  # type: ignore[method-assign]
