"""What all processes share: the state folder, the log, and the page that explains their options and metrics."""

import io
import json
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedgs.deploy import logs
from fedgs.deploy.membership import Roster
from fedgs.deploy.metrics import StationMetrics, TopMetrics
from fedgs.deploy.process import claim
from fedgs.deploy.settings import StationSettings
from fedgs.errors import ConfigError, OutputError, PeerError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_users_alone_and_one_process_s(tmp_path: Path) -> None:
    with claim(tmp_path / "state", "station"):
        assert mode(tmp_path / "state") == 0o700
        with pytest.raises(OutputError, match="another station is running"), claim(tmp_path / "state", "station"):
            pass
    with claim(tmp_path / "state", "station"):
        pass


def test_an_error_before_anything_was_written_leaves_no_new_folder(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "there"):
        if folder.name == "there":
            folder.mkdir(mode=0o700)
        with pytest.raises(PeerError), claim(folder, "station"):
            raise PeerError("the port is in use")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("permissions", [0o755, 0o710, 0o701])
def test_a_folder_that_others_can_enter_is_refused_and_not_changed(tmp_path: Path, permissions: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(permissions)
    with pytest.raises(ConfigError, match="can enter"), claim(shared, "station"):
        pass
    assert mode(shared) == permissions
    assert list(shared.iterdir()) == []


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
    when, said = first.split(" ", 1)
    assert said == "ERROR   stream failed  device=a"
    assert datetime.fromisoformat(when).tzinfo is not None
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "KeyError: 'weights'"
    line = json.loads(logged(as_json=True))
    assert (line["event"], line["device"], line["error"]) == ("stream failed", "a", "KeyError: 'weights'")
    assert "in logged" in line["traceback"]


def test_a_line_has_date_offset_level_and_process_and_the_last_ones_are_kept() -> None:
    out, began = io.StringIO(), datetime.now(UTC)
    logs.set_up("warning", True, out, "station s1")
    logs.log.info("device joined", device="a")  # below what is printed, but an event all the same
    logs.log.warning("device left")
    line = json.loads(out.getvalue())
    assert line.keys() == {"time", "level", "process", "event"}
    assert (line["level"], line["process"], line["event"]) == ("warning", "station s1", "device left")
    assert abs(datetime.fromisoformat(line["time"]) - began).total_seconds() < 60
    joined, left = logs.recent.after(1)[-2:]
    assert (joined.what, joined.details, joined.process, joined.level) == (
        "device joined",
        "device=a",
        "station s1",
        "info",
    )
    assert left.time == line["time"]
    assert [event.what for event in logs.recent.after(joined.number)] == ["device left"]
    assert logs.recent.after(0) == []


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


def exposed() -> tuple[set[str], set[str]]:
    """Return the names of all metrics, and of all their samples."""
    station = StationMetrics()
    roster = Roster()
    roster.join("a", None)  # type: ignore[arg-type]
    station.show(roster)
    families = [family for metrics in (station, TopMetrics()) for family in metrics.registry.collect()]
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return names, {sample.name for family in families for sample in family.samples}


def test_every_metric_is_listed() -> None:
    assert [name for name in sorted(exposed()[0]) if f"`{name}" not in PAGE] == []


def test_the_dashboard_asks_for_metrics_that_exist_and_for_each_of_them() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "deploy/grafana/fedgs.json").read_text(encoding="utf-8"))
    assert dashboard["schemaVersion"] >= 36
    assert "__inputs" not in dashboard  # the data source is chosen by a variable
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    targets = [target for panel in panels for target in panel["targets"]]
    assert {one["datasource"]["uid"] for one in [*panels, *targets]} == {"${datasource}"}
    asked = {name for target in targets for name in re.findall(r"fedgs_\w+", target["expr"])}
    assert {name for target in targets for name in re.findall(r"\$(?!__)(\w+)", target["expr"])} <= set(variables)
    names, samples = exposed()
    assert sorted(asked - samples) == []
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    assert sorted(names - stems) == []
