"""Reports without figures."""

from pathlib import Path

from reproduction.experiments.jobs import Results
from reproduction.report.report_inputs import ReportInputs
from reproduction.report.write import compose


class Words(ReportInputs):
    """Inputs of which no figure is drawn: drawing takes longer than all else."""

    def figure(self, name: str, caption: str, size: tuple[float, float], paint: object) -> str:
        return f"![{caption}](figures/{name}.png)"


def text_of(results: Results) -> str:
    return compose(Words(Path("results"), results)).replace("\u00a0", " ")
