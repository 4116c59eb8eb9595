"""The peers of `benchmarks/serve.py`: the same model, decoded and prepared by the same code, in LitServe or Ray Serve.

    python benchmarks/serve_peers.py litserve Ti/16@weights.safetensors 8001 8

Both batch as their documentation advises: up to the batch size, with a short wait for more.
"""

from __future__ import annotations

import base64
import os
import signal
import sys
from typing import Any

import torch

BATCH_WAIT = 0.005
"Seconds that a peer waits for a batch to fill."


class Classifier:
    """Takes pictures in base64 and returns the likeliest class of each."""

    def __init__(self, model: str) -> None:
        import vitkit

        torch.set_num_threads(1)
        self.predictor = vitkit.load(model, device="cpu")

    def prepare(self, text: str) -> torch.Tensor:
        from vitkit.data.images import prepare

        return prepare(base64.b64decode(text), self.predictor.preprocessing)

    def classify(self, images: list[torch.Tensor]) -> list[dict[str, Any]]:
        logits = self.predictor.logits(torch.stack(images))
        probabilities, indices = logits.softmax(-1).max(-1)
        return [
            {"index": index, "probability": probability}
            for index, probability in zip(indices.tolist(), probabilities.tolist(), strict=True)
        ]


if sys.argv[1:2] == ["litserve"]:  # its worker process imports this file, and takes the class by its name
    import litserve as lit

    class Api(lit.LitAPI):
        def setup(self, device: str) -> None:
            self.classifier = Classifier(sys.argv[2])

        def decode_request(self, request: dict[str, Any]) -> torch.Tensor:
            return self.classifier.prepare(request["images"][0])

        def batch(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return inputs

        def predict(self, images: list[torch.Tensor]) -> list[dict[str, Any]]:
            return self.classifier.classify(images)

        def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return output

        def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
            return output


def litserve(model: str, port: int, batch_size: int) -> None:
    api = Api(max_batch_size=batch_size, batch_timeout=BATCH_WAIT)
    server = lit.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="error")


def ray(model: str, port: int, batch_size: int) -> None:
    import ray as cluster
    from ray import serve
    from starlette.requests import Request

    cluster.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=200_000_000,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    @serve.deployment(
        max_ongoing_requests=256, logging_config={"log_level": "ERROR"}, ray_actor_options={"num_cpus": 1}
    )
    class Deployment:
        def __init__(self) -> None:
            self.classifier = Classifier(model)

        @serve.batch(max_batch_size=batch_size, batch_wait_timeout_s=BATCH_WAIT)
        async def classify(self, texts: list[str]) -> list[dict[str, Any]]:
            return self.classifier.classify([self.classifier.prepare(text) for text in texts])

        async def __call__(self, request: Request) -> dict[str, Any]:
            document = await request.json()
            return await self.classify(document["images"][0])  # type: ignore[no-any-return]

    serve.run(Deployment.bind(), route_prefix="/predict")  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    peer, model, port, batch_size = sys.argv[1:]
    {"litserve": litserve, "ray": ray}[peer](model, int(port), int(batch_size))
