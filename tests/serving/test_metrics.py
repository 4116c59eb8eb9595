"""Counters of several processes, summed as Prometheus reads them."""

from __future__ import annotations

import re

from vitkit.serving.metrics import ROW, Metrics


def test_rows_of_all_processes_are_summed() -> None:
    rows = [[0.0] * ROW for _ in range(3)]
    first, second = Metrics(rows, 0), Metrics(rows, 1)
    first.add("vit_images_total", "answered", 3)
    second.add("vit_images_total", "answered", 4)
    second.set("vit_waiting_images", 2)
    for metrics in (first, second):
        assert metrics.total("vit_images_total", "answered") == 7
        assert 'vit_images_total{outcome="answered"} 7\n' in metrics.text()
        assert "\nvit_waiting_images 2\n" in metrics.text()


def test_histograms_count_up_to_each_bound() -> None:
    metrics = Metrics()
    for seconds in (0.005, 0.02, 0.3, 99.0):
        metrics.observe("vit_latency_seconds", seconds)
    found = dict(re.findall(r'vit_latency_seconds_bucket\{le="(.+)"\} (\d+)', metrics.text()))
    assert [found[bound] for bound in ("0.005", "0.01", "0.025", "0.5", "10.0", "+Inf")] == [*"112334"]
    assert "vit_latency_seconds_sum 99.325\nvit_latency_seconds_count 4\n" in metrics.text()


def test_every_line_is_of_the_text_format() -> None:
    metrics = Metrics()
    metrics.add("vit_requests_total", 200)
    metrics.add("vit_compute_seconds_total", amount=0.125)
    names = set()
    for line in metrics.text().splitlines():
        if match := re.fullmatch(r"# TYPE (\w+) (counter|gauge|histogram)", line):
            names.add(match[1])
        else:
            assert re.fullmatch(r"# HELP \w+ .+|\w+(\{\w+=\"[\w.+]+\"\})? -?[0-9.e+-]+", line), line
            name = re.split(r"[ {]", line.removeprefix("# HELP "))[0]
            assert line.startswith("# HELP") or re.sub(r"_(bucket|sum|count)$", "", name) in names
