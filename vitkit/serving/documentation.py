"""The description of the API as a page without scripts, from its OpenAPI document."""

from __future__ import annotations

from typing import Any

from vitkit.markup import Html, element
from vitkit.page import page, section, table

_EXAMPLES = {
    "/predict": "curl -F file=@photo.jpg http://127.0.0.1:8000/predict",
    "/embed": "curl -F file=@a.jpg -F file=@b.jpg http://127.0.0.1:8000/embed",
    "/attention": "curl -F file=@photo.jpg 'http://127.0.0.1:8000/attention?layer=11&head=mean' -o attention.png",
    "/search": "curl -F file=@photo.jpg 'http://127.0.0.1:8000/search?k=5'",
}


def describe(document: dict[str, Any]) -> str:
    """Return the HTML page."""
    parts = [
        _operation(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    about = document["info"]["description"]
    return page(
        f"{document['info']['title']}: API", *parts, about=about, foot="The same for programs: /openapi.json"
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> Html:
    content: list[str] = [element("p", operation.get("description", ""))]
    if operation.get("security"):
        content.append(element("p", "Needs the header Authorization: Bearer KEY."))
    if parameters := operation.get("parameters"):
        rows = [
            [parameter["name"], _kind(parameter["schema"]), str(parameter["schema"].get("default", ""))]
            for parameter in parameters
        ]
        content.append(table(["in the address", "is", "default"], rows, label=f"Parameters of {path}"))
    if "requestBody" in operation:
        rows = [[kind, _body(entry["schema"])] for kind, entry in operation["requestBody"]["content"].items()]
        content.append(table(["content type", "body"], rows, label=f"Bodies of {path}"))
    if path in _EXAMPLES:
        content.append(element("pre", _EXAMPLES[path]))
    rows = [[status, answer["description"]] for status, answer in operation["responses"].items()]
    content.append(table(["status", "means"], rows, label=f"Answers of {path}"))
    return section(f"{method.upper()} {path}", *content)


def _kind(schema: dict[str, Any]) -> str:
    return schema.get("pattern", schema.get("type", ""))


def _body(schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        return "one picture's file"
    [(name, entry)] = schema["properties"].items()
    each = "a file" if entry["items"].get("format") == "binary" else "a file in base64"
    most = entry["maxItems"]
    return f"{name}: {each}" if most == 1 else f"{name}: 1 to {most}, each {each}"
