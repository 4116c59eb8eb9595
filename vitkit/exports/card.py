"""The model card of an exported folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.files import write_file
from vitkit.models.configs import OwnConfig
from vitkit.models.names import find_name
from vitkit.runtimes import Runtime
from vitkit.runtimes.folder import GRAPHS
from vitkit.weights.folder import CARD, Origin, Stored, origin_in_words, preprocessing_in_words

if TYPE_CHECKING:
    from vitkit.exports.run import Exported

RUNTIMES: dict[Runtime, str] = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}


def write_card(folder: Path, stored: Stored, result: Exported) -> None:
    """Write README.md."""
    config = stored.config
    own = config.module if isinstance(config, OwnConfig) else None
    name = own or find_name(config) or "a model of an unpublished size"
    call = "predict" if config.num_classes else "embed"
    height, width = config.size
    write_file(
        folder / CARD,
        f"""---
library_name: vitkit
tags: [vision-transformer, vitkit, {result.to}]
---

# {name} for {RUNTIMES[result.to]}, {result.precision}

{origin_in_words(Origin(start=result.model))}
- `{GRAPHS[result.to][0]}`: input `images`, float32 (batch, {config.channels}, {height}, {width}), any batch size; outputs \
{" and ".join(f"`{output}`" for output in result.outputs)}.
{check_in_words(result)}
Preprocessing: {preprocessing_in_words(stored.preprocessing)}. `config.json` has it, the names of the classes and all
numbers of the check.

```python
import vitkit

model = vitkit.load("FOLDER")
model.{call}("photo.jpg")
```
""",
    )


def check_in_words(result: Exported) -> str:
    """Return the lists of calibration and check."""
    check, lines = result.check, []
    if calibration := result.calibration:
        lines.append(f"- Calibrated on {calibration.images} images of `{calibration.data}`.")
    same = "" if check.agreement is None else f", the same likeliest class for {check.agreement:.1%}"
    lines.append(
        f"- Next to its source on {check.images} images ({check.what}): outputs differ by {check.largest_difference:.2g} at "
        f"most and {check.relative_error:.2%} on average{same}."
    )
    if check.before is not None and check.after is not None:
        metric = str(check.metric).replace("_", " ")
        lines.append(
            f"- {metric} on `{check.data}`: {check.before:.2%} before, {check.after:.2%} after.".capitalize()
        )
    return "".join(f"{line}\n" for line in lines)
