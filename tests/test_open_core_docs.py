"""docs/how-to/own-models.md: every block runs as it stands, every settings file can be read and run."""

import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

import fedgs
from fedgs.config import load_settings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to" / "own-models.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|toml)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
MODULE = "# my_plant.py\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_plant", raising=False)
    return tmp_path


def run_page(here: Path) -> tuple[dict[str, Any], list[Path]]:
    names: dict[str, Any] = {"__name__": "page"}
    files: list[Path] = []
    for number, (kind, code) in enumerate(BLOCKS):
        if kind == "toml":
            files.append(here / f"block-{number}.toml")
            files[-1].write_text(code, encoding="utf-8")
        elif code.startswith(MODULE):
            (here / "my_plant.py").write_text(code, encoding="utf-8")
        else:
            exec(compile(code, f"own-models.md, block {number}", "exec"), names)
    return names, files


def test_the_page_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, files = run_page(here)
    assert names["history"].metrics[-1]["accuracy"] > 0.9
    assert (len(names["part"]), len(names["whole"])) == (2, 4)
    assert (here / "runs/mine/summary.json").is_file()
    assert (here / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    printed = capsys.readouterr().out
    assert "takes a team's batches as one, but in this network layer '1' normalises" in printed
    assert "no recording of the CWRU bearing data" in printed
    assert len(files) == 2
    for file in files:
        settings = load_settings(file)
        history = fedgs.run(None, names["federation"], settings=settings, device="cpu", iterations=2, pick=2)
        assert len(history) == 2
        assert history.settings.algorithm == settings.algorithm.model_copy(
            update={"kind": history.settings.algorithm.kind}
        )


def test_every_public_name_and_every_field_of_a_task_is_on_the_page() -> None:
    code = "\n".join(text for kind, text in BLOCKS if kind == "python")
    for name in fedgs.__all__:
        if name not in ("Comparison", "History", "Settings", "__version__"):  # what others return or take
            assert f"fedgs.{name}" in code or f"({name}" in code, name
    fields = [name for name in fedgs.Task.__dataclass_fields__ if name != "path"]
    table = PAGE[PAGE.index("| field of `fedgs.Task`") : PAGE.index("**The loss gives one number")]
    assert set(re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines()[2:] if row))) == set(
        fields
    )


def test_the_commands_of_the_page_are_understood() -> None:
    for line in re.findall(r"^    fedgs run --preset bearings(.*)$", PAGE, flags=re.MULTILINE):
        overrides = re.findall(r"--set (\S+)", line.partition("#")[0])
        assert load_settings(overrides=overrides, preset="bearings").federation.devices == 200


def test_the_quickstart_of_the_readme_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 11
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert names["history"].metrics[-1]["accuracy"] > 0.9


@pytest.mark.parametrize(
    "page", ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_links_and_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target
    for name in re.findall(r"`((?:src/)?fedgs/[\w/]+\.py|(?:tests|benchmarks|examples)/[\w/]+\.py)`", text):
        assert (ROOT / name).exists() or (ROOT / "src" / name).exists(), name


def test_anchors_exist() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    for source in (*pages.values(), (ROOT / "README.md").read_text(encoding="utf-8")):
        for name, anchor in re.findall(r"\]\((?:[\w./-]*/)?([\w-]+\.md)#([\w-]+)\)", source):
            headings = re.findall(r"^#+ (.*)$", pages[name], flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, (
                name,
                anchor,
            )
