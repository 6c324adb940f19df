"""The ServerApp: the top server of :mod:`fedgs.deploy`, with SuperNodes for stations.

A restarted SuperLink does not resume its runs. This app keeps a checkpoint of its own in ``top.state``: the same
``flwr run`` once more resumes from there, and a round that a station has already done is not done twice.
"""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgs.deploy.logs import log, set_up
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.top_state import MODEL, shown_score
from fedgs.errors import FedgsError
from fedgs.flower.options import options_of
from fedgs.flower.strategies import flower_rule
from fedgs.flower.transport import FlowerTransport, SuperNodes

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run to its last round."""
    set_up()
    try:
        settings, options = options_of(context.run_config)
        set_up(options.log_level, options.log_json)
        nodes = SuperNodes(grid, options.stations)
        transports = [FlowerTransport(factory, nodes) for factory in range(options.stations)]
        last = carry_out(settings, options, Path(options.state), transports, flower_rule(settings.server))
    except FedgsError as error:
        log.error(str(error))  # in one line; Flower adds the traceback
        raise
    score = shown_score(last.metrics[-1])
    shown = {"score": score} if score else {}
    log.info("run done", extra={"rounds": last.round, **shown, "model": Path(options.state) / MODEL})
