"""The files of deploy/, and the commands of the tutorial: what an operator would start is started here.

The compose park runs as plain processes: every service has a loopback address of its own instead of a network, and
folders instead of volumes. Nothing else is changed but the length of the run. Linters run where they are installed.
"""

import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import fedgs
from fedgs.ui.sources import make_source
from tests.deploy.by_hand import done, played
from tests.test_docs import COMMAND, ROOT, TEXT, command_of

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TEMPLATES = sorted((DEPLOY / "helm/fedgs/templates").glob("*.yaml"))


def loopback() -> str:
    """Return the first three numbers of loopback addresses that nobody else is likely to use."""
    return "127." + ".".join(str(random.SystemRandom().randint(1, 254)) for _ in range(2))


def shorter(text: str, **values: object) -> str:
    """Return settings in TOML with other values for these keys."""
    for key, value in values.items():
        text, found = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
        assert found == 1, key
    return text


class PlainCompose:
    """The compose file's commands, with folders for its volumes and loopback addresses for its services."""

    def __init__(self, folder: Path) -> None:
        net = loopback()
        self.folder, self.address = folder, {name: f"{net}.{n}" for n, name in enumerate(SERVICES, start=1)}

    def plain(self, service: str, text: str) -> str:
        """Return a text of a service as it counts outside of a container."""
        places = {one["target"]: self.folder / f"{one['source']}.toml" for one in SERVICES[service].get("configs", ())}
        for volume in SERVICES[service].get("volumes", ()):
            if isinstance(volume, str):
                source, target = volume.split(":")
                volume = {"source": source, "target": target}
            places[volume["target"]] = self.folder / volume["source"] / volume.get("volume", {}).get("subpath", "")
        for target, place in places.items():
            text = re.sub(rf"(?<![\w/.]){re.escape(target)}(?![\w-])", str(place), text)
        for name, address in self.address.items():
            text = re.sub(rf"(?<=--host ){name}(?=\s)|(?<![\w-]){name}(?=:\d)", address, text)
        return re.sub(r"0\.0\.0\.0|127\.0\.0\.1(?=:9100)", self.address[service], text)

    def command(self, service: str) -> str:
        """Return the command of a service."""
        return self.plain(service, f"fedgs {SERVICES[service]['command']}")


def test_the_compose_park_runs_as_plain_processes(tmp_path: Path) -> None:
    """Init is started twice, as by a second ``docker compose up``, where its certificates exist."""
    park = PlainCompose(tmp_path)
    assert COMPOSE["configs"] == {"settings": {"file": "park.toml"}}
    settings = shorter((DEPLOY / "park.toml").read_text(), rounds=1, iterations=2, learning_rate=0.01, model='"linear"')
    (tmp_path / "settings.toml").write_text(settings.replace("[data]\n", "[data]\nsamples_per_device = 20\n"))
    assert SERVICES["init"]["entrypoint"] == ["sh", "-ec"]
    init = park.plain("init", SERVICES["init"]["command"][0])
    done(init, tmp_path)
    done(re.sub(r"fedgs park data .*", "", init), tmp_path)  # which takes longest
    names = [name for name in SERVICES if name not in ("init", "top", "ui")]
    with played({name: park.command(name) for name in (*names, "top")}, tmp_path):
        for name in ("station-1", "station-2"):
            kind, *test = SERVICES[name]["healthcheck"]["test"]
            assert kind == "CMD"
            done(park.plain(name, shlex.join(test)), tmp_path)
    assert (tmp_path / "park/top/model.safetensors").exists()
    shown = make_source(tmp_path / "park").describe()  # what the live page begins with
    for name, factory in shown["devices"]:
        assert f"--station station-{factory + 1}:7070" in SERVICES[name]["command"]
    assert shown["of_rounds"] == 1


def test_the_tutorial_of_a_plant_can_be_followed(tmp_path: Path) -> None:
    """Its commands in their order, on one machine, with two of its cameras and their images; the run is shorter."""
    page, address = TEXT["docs/tutorial/plant.md"], f"{loopback()}.1"
    (settings,) = re.findall(r"^```toml\n# harbour\.toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    short = {"rounds": 1, "iterations": 2, "batch_size": 4, "learning_rate": 0.001, "model": '"linear"'}
    (tmp_path / "harbour.toml").write_text(shorter(settings, **short))
    cameras = ("camera-1", "camera-2")
    for folder in ("photos", *cameras):
        for label, name in enumerate(("dent", "ok")):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(12):
                pixels = np.random.default_rng(number).integers(0, 99, (40, 30)) + 99 * label
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / folder / name / f"{number}.png")
    processes = {}
    for line in COMMAND.findall(page.replace("s1.harbour.example", address).replace("0.0.0.0", address)):
        role = line.split()[1]
        if role in ("station", "top"):
            processes[role] = line
        elif role == "device":
            for camera in cameras:
                processes[camera] = line.replace("camera-1", camera).replace("/srv/camera", str(tmp_path / camera))
        elif role != "park":  # other tests start parks
            done(line, tmp_path)
    assert list(processes) == ["station", *cameras, "top"]
    with played(processes, tmp_path):
        pass
    assert (tmp_path / "runs/harbour/model.safetensors").exists()


def unit_commands() -> list[str]:
    text = re.sub(r"\\\n +", "", "".join(unit.read_text() for unit in UNITS))
    found = re.findall(r"^ExecStart=/opt/fedgs/bin/(fedgs .*) \$OPTIONS$", text, re.MULTILINE)
    assert len(found) == len(UNITS) == 3
    return found


def template_commands() -> list[str]:
    found = []
    for template in TEMPLATES:
        for block in re.findall(r"^ +args:\n((?: +(?:- |\{\{-).*\n)+)", template.read_text(), re.MULTILINE):
            words = re.findall(r'^ +- "?([\w/-].*?)"?$', block, re.MULTILINE)  # without those that users add
            found.append(f"fedgs {shlex.join(words)}")
    assert len(found) == 2
    return found


def test_every_command_of_units_chart_and_compose_file_is_complete() -> None:
    """Options exist, have values of their kind, and none is missing."""
    composed = [f"fedgs {service['command']}" for name, service in SERVICES.items() if name != "init"]
    for line in (*unit_commands(), *template_commands(), *composed):
        command, words = command_of(line)
        command.make_context(line, words)  # click's own errors name what is wrong


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((DEPLOY / "helm/fedgs/Chart.yaml").read_text())["appVersion"] == fedgs.__version__


CHART, UNIT = "deploy/helm/fedgs", "$units/fedgs-$role@x.service"
LINTERS = {
    "hadolint": "hadolint deploy/docker/Dockerfile",
    "docker compose": "docker compose -f deploy/compose.yaml --profile ui config --quiet",
    "docker buildx": "docker buildx bake -f deploy/docker/docker-bake.hcl --print >&2",
    "helm": f"helm lint --strict {CHART} >&2; helm template park {CHART} --set networkPolicy.enabled=true >&2",
    "systemd-analyze": f"for role in device station top; do systemd-analyze verify --man=no {UNIT} 2>&1; "
    f"systemd-analyze security --no-pager --offline=true --threshold=20 {UNIT} >&2; done",
}
"""What prints to stdout, or fails, has found something."""


@pytest.mark.parametrize("tool", LINTERS)
def test_linters_find_nothing(tool: str, tmp_path: Path) -> None:
    program, *plugin = tool.split()
    if not shutil.which(program) or (plugin and subprocess.run([program, *plugin, "version"], check=False).returncode):
        pytest.skip(f"{tool} is not installed")
    shutil.copytree(DEPLOY / "systemd", tmp_path / "units")
    for unit in (tmp_path / "units").glob("*.service"):  # a program that is there, on this machine too
        unit.write_text(unit.read_text().replace("/opt/fedgs/bin/fedgs", sys.executable))
    places = f"units={tmp_path}/units; export SYSTEMD_UNIT_PATH=$units:; "
    found = subprocess.run(["sh", "-ec", places + LINTERS[tool]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
