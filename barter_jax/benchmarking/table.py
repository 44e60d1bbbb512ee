"""The document as tables for a terminal of 120 columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GIB = 2**30
MIB = 2**20
NONE = "-"


def render(doc: dict[str, Any]) -> str:
    """The document as text for a person."""
    lines = [_headline(doc["environment"], doc["settings"])]
    for reference in doc["reference"]:
        cases = [c for c in doc["cases"] if c["batch_size"] == reference["batch_size"]]
        lines += ["", _title(reference), *_aligned(_step_rows(cases))]
    lines += ["", "memory of a training step, and compiling in seconds"]
    lines += _aligned(_memory_rows(doc))
    counts = doc["environment"]["device_counts_memory"]
    lines += [
        "(device: < before an upper bound)" if counts else "(this device does not count its memory)"
    ]
    updates = _update_rows(doc)
    if len(updates) > 1:
        lines += ["", "topology updates, in ms; without compiling", *_aligned(updates)]
    if doc.get("segments"):
        lines += ["", "segments of the training loop, in s an epoch", *_aligned(_segment_rows(doc))]
    return "\n".join(lines)


def _headline(environment: dict[str, Any], settings: dict[str, Any]) -> str:
    where = environment["device_kind"]
    if where == environment["platform"]:
        where = f"{environment['processor']} ({environment['cores']} cores)"
    return (
        f"{settings['model']}, {environment['dtype']}, on {where} x{environment['devices']}, "
        f"jax {environment['versions'].get('jax', '')}, {settings['rounds']} rounds"
    )


def _title(reference: dict[str, Any]) -> str:
    found = reference["method"]
    against = f"speed-up over {found}, the fastest dense case" if found else "no dense case"
    return f"batch {reference['batch_size']}; {against}"


def _step_rows(cases: Sequence[dict[str, Any]]) -> list[list[str]]:
    head = ["case", "step ms", "p10 - p90", "images/s", "GFLOPs/image", "FLOPs", "speed-up",
            "realised", "eval images/s"]  # fmt: skip
    return [head] + [
        [
            label(case),
            ms(case["step_ms"]["median"]),
            f"{ms(case['step_ms']['p10'])} - {ms(case['step_ms']['p90'])}",
            f"{case['images_per_second']:.0f}",
            f"{case['training_gflops_per_image']:.4g}",
            f"1/{case['flop_ratio']:.2f}",
            _number(case["speedup"], "{:.2f}x"),
            _number(case["realised"], "{:.2f}"),
            f"{case['evaluation']['images_per_second']:.0f}",
        ]
        for case in cases
    ]


def _memory_rows(doc: dict[str, Any]) -> list[list[str]]:
    several = len(doc["reference"]) > 1
    head = ["case", "compiler", "less", "device", "less", "trace+lower", "cold", "warm",
            "eval cold", "warm"]  # fmt: skip
    rows = [head]
    for case in doc["cases"]:
        compiler, device = case["memory"]["compiler"] or {}, case["memory"]["device"] or {}
        compiled = case["compile"] or {"train": {}, "evaluate": {}}
        train, evaluate = compiled["train"], compiled["evaluate"]
        bound = "<" if device and not device["exact"] else ""
        rows.append(
            [
                label(case, several),
                size(compiler.get("peak_bytes")),
                _number(compiler.get("reduction_percent"), "{:.1f}%"),
                bound + size(device.get("peak_bytes")),
                _number(device.get("reduction_percent"), "{:.1f}%"),
                _number(train.get("trace_and_lower_seconds"), "{:.2f}"),
                _number(train.get("cold_seconds"), "{:.2f}"),
                _number(train.get("warm_seconds"), "{:.2f}"),
                _number(evaluate.get("cold_seconds"), "{:.2f}"),
                _number(evaluate.get("warm_seconds"), "{:.2f}"),
            ]
        )
    return rows


def _update_rows(doc: dict[str, Any]) -> list[list[str]]:
    several = len(doc["reference"]) > 1
    head = ["case", "updates", "each", "policy", "surgery", "placing", "switch", "schedule",
            "a step", "weighted step", "share"]  # fmt: skip
    rows = [head]
    for case in doc["cases"]:
        found = case["updates"]
        if found is None:
            continue
        each = found["per_update_ms"]
        rows.append(
            [
                label(case, several),
                str(found["count"]),
                _number(each["total"], "{:.2f}"),
                *(_number(each[part], "{:.2f}") for part in ("policy", "surgery", "placing")),
                _number(each["switch"], "{:.4f}"),
                f"{found['schedule_ms']:.1f}",
                f"{found['per_step_ms']:.3g}",
                ms(found["schedule_weighted_step_ms"]),
                f"{100 * found['share_of_schedule']:.2g}%",
            ]
        )
    return rows


def _segment_rows(doc: dict[str, Any]) -> list[list[str]]:
    several = len(doc["reference"]) > 1
    head = ["case", "epoch", "step", "data", "update", "speed-up", "updates", "compile",
            "evaluation"]  # fmt: skip
    return [head] + [
        [
            label(segment, several),
            f"{segment['seconds_per_epoch']:.2f}",
            *(f"{segment['per_epoch'][kind]:.2f}" for kind in ("step", "data", "update")),
            _number(segment["speedup"], "{:.2f}x"),
            str(segment["updates"]),
            *(f"{segment['seconds'][kind]:.2f}" for kind in ("compile", "evaluation")),
        ]
        for segment in doc["segments"]
    ]


def label(case: dict[str, Any], with_batch: bool = False) -> str:
    """Method and density of a case of the document, and its batch size where several are shown."""
    density = "" if case["density"] is None else f" {case['density']:g}"
    batch = f" b{case['batch_size']}" if with_batch else ""
    return f"{case['method']}{density}{batch}"


def ms(value: float) -> str:
    """Milliseconds to some four digits."""
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def size(bytes_: int | None) -> str:
    """Bytes as GiB, or MiB where they are few."""
    if bytes_ is None:
        return NONE
    return f"{bytes_ / GIB:.3f} GiB" if bytes_ >= GIB else f"{bytes_ / MIB:.1f} MiB"


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else form.format(value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns two spaces apart, the first to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    ]
