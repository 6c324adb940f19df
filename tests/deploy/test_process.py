"""What all processes share: the state folder, the log, and the page that explains their options and metrics."""

import io
import json
import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest

from fedgs.deploy import logs
from fedgs.deploy.metrics import StationMetrics, TopMetrics
from fedgs.deploy.process import claim
from fedgs.deploy.settings import StationSettings
from fedgs.errors import ConfigError, OutputError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_users_alone_and_one_process_s(tmp_path: Path) -> None:
    with claim(tmp_path / "state", "station"):
        assert mode(tmp_path / "state") == 0o700
        with pytest.raises(OutputError, match="another station is running"), claim(tmp_path / "state", "station"):
            pass
    with claim(tmp_path / "state", "station"):
        pass


@pytest.mark.parametrize("permissions", [0o755, 0o710, 0o701])
def test_a_folder_that_others_can_enter_is_refused_and_not_changed(tmp_path: Path, permissions: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(permissions)
    with pytest.raises(ConfigError, match="can enter"), claim(shared, "station"):
        pass
    assert mode(shared) == permissions
    assert list(shared.iterdir()) == []


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before, level, propagate = list(logs.log.logger.handlers), logs.log.logger.level, logs.log.logger.propagate
    yield
    logs.log.logger.handlers[:], logs.log.logger.propagate = before, propagate
    logs.log.setLevel(level)


def logged(as_json: bool) -> str:
    out = io.StringIO()
    logs.set_up("info", as_json, out)
    try:
        raise KeyError("weights")
    except KeyError:
        logs.log.exception("stream failed", device="a")
    return out.getvalue()


def test_an_exception_is_logged_with_type_message_and_traceback() -> None:
    first, *rest = logged(as_json=False).splitlines()
    assert first.endswith("ERROR   stream failed  device=a")
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'weights'"
    line = json.loads(logged(as_json=True))
    assert (line["event"], line["device"], line["error"]) == ("stream failed", "a", "KeyError: 'weights'")
    assert "in logged" in line["traceback"]


def test_other_lines_have_none() -> None:
    out = io.StringIO()
    logs.set_up("info", True, out)
    logs.log.log(logging.INFO, "device joined")
    assert json.loads(out.getvalue()).keys() == {"time", "level", "event"}


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
