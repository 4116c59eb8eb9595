"""What the API's documents look like, for its OpenAPI description."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(Document):
    error: str = Field(description="What is wrong, in one line.")
    retry_after: float | None = Field(
        None, description="Seconds after which the same request would be accepted, with status 503."
    )


class Class(Document):
    name: str
    index: int
    probability: float


class Predicted(Document):
    file: str = Field(description="The file's name in the request.")
    classes: list[Class] | None = Field(None, description="The likeliest first.")
    error: str | None = Field(None, description="Why this picture can't be read.")


class Predictions(Document):
    predictions: list[Predicted]


class Embeddings(Document):
    embeddings: list[list[float]] = Field(description="One row for each picture.")
    width: int


class Found(Document):
    index: int = Field(description="Of the image, for /thumbnail.")
    name: str
    label: str
    similarity: float = Field(description="Cosine of the features, at most 1.")


class Similar(Document):
    images: list[Found] = Field(description="The nearest first.")


class AttentionInfo(Document):
    layers: int
    heads: int


class SearchInfo(Document):
    images: int


class Info(Document):
    model: str
    architecture: str
    num_classes: int
    multi_label: bool
    image_size: tuple[int, int] = Field(description="Height and width.")
    key_required: bool
    attention: AttentionInfo | None
    attention_reason: str | None = Field(description="Why there is no attention to look at.")
    search: SearchInfo | None
    max_bytes: int = Field(description="Of a request.")
    max_images: int = Field(description="Of a request.")
    latency_ms: float = Field(description="The bound, from a request's last byte to the answer's first.")


class Health(Document):
    status: str
