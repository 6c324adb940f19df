"""Reports as words alone."""

from pathlib import Path

from reproduction.experiments.parts import Results
from reproduction.report.report_inputs import Material
from reproduction.report.write import compose


class Words(Material):
    """Material of which no picture is drawn: drawing takes longer than all else."""

    def figure(self, name: str, caption: str, size: tuple[float, float], paint: object) -> str:
        return f"![{caption}](figures/{name}.png)"


def text_of(results: Results) -> str:
    return compose(Words(Path("results"), results)).replace("\u00a0", " ")
