"""Human-readable numbers: 96.5%, 3.76 M, 1 h 5 min."""

from __future__ import annotations


def percent(ratio: float) -> str:
    """0.96531 -> 96.53%"""
    return f"{ratio:.2%}"


def decimal(value: float) -> str:
    """Four significant digits: 0.61234 -> 0.6123, 1234.5 -> 1,234"""
    if value and abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def compact(value: float) -> str:
    """Three significant digits and a unit: 3760000 -> 3.76 M"""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g}"


def flops(exaflops: float) -> str:
    """Three significant digits and a unit: 0.0451 -> 45.1 PFLOPs"""
    for unit, name in ((1, "E"), (1e-3, "P"), (1e-6, "T")):
        if exaflops >= 0.9995 * unit:
            return f"{decimal(float(f'{exaflops / unit:.3g}'))} {name}FLOPs"
    return f"{exaflops / 1e-9:.3g} GFLOPs"


def duration(seconds: float) -> str:
    """At most two units: 3905 -> 1 h 5 min"""
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def rough_duration(seconds: float) -> str:
    """One unit, for estimates: 3905 -> 65.1 minutes"""
    for unit, length in (("years", 31_557_600), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} seconds"


def clock(seconds: float) -> str:
    """Like a clock: 3905 -> 1:05:05, 65 -> 1:05"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_accuracy(name: str) -> bool:
    """Return whether a metric's name is that of an accuracy."""
    return name.endswith("accuracy")


def is_share(name: str) -> bool:
    """Return whether a metric's name means that it is shown in percent."""
    return is_accuracy(name) or name.endswith(("average_precision", "calibration_error"))


def metric(name: str, value: float) -> str:
    """A share in percent, any other metric as a decimal number with aligned digits."""
    if is_share(name):
        return percent(value)
    return f"{value:.4f}" if 1e-3 <= abs(value) < 100 else decimal(value)


def metric_name(name: str) -> str:
    """'val_ema/accuracy' -> 'val ema accuracy'"""
    return name.replace("/", " ").replace("_", " ")
