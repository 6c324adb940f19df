"""docs/how-to/deployment.md: its options and metrics are those that exist."""

import re
from pathlib import Path

import prometheus_client

from fedgs.deploy.metrics import StationMetrics, TopMetrics
from fedgs.deploy.settings import StationSettings

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "deployment.md").read_text(encoding="utf-8")


def test_every_option_of_a_station_is_explained_with_its_default() -> None:
    rows = re.findall(r"^\| (`--[^|]+) \| ([^|]+) \| [^|]+ \|$", PAGE, flags=re.MULTILINE)
    options = [name for names, _ in rows for name in re.findall(r"`--([\w-]+)`", names)]
    explained = [name for name in StationSettings.model_fields if name not in ("metrics", "log_level", "log_json")]
    assert sorted(options) == sorted(name.replace("_", "-") for name in explained)
    defaults = dict(zip(options, [part.strip() for _, row in rows for part in row.split(", ")], strict=True))
    for name in explained:
        default = StationSettings.model_fields[name].default
        shown = "as many as are selected" if default is None else f"{default}".removesuffix(".0")
        assert defaults[name.replace("_", "-")] == shown


def test_every_metric_is_listed() -> None:
    for metrics in (StationMetrics(), TopMetrics()):
        page = prometheus_client.generate_latest(metrics.registry).decode()
        for name in re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)", page, flags=re.MULTILINE):
            if not name.endswith("_created"):
                assert f"`{name}" in PAGE, name
