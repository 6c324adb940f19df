"""The ServerApp: the top server of :mod:`fedgs.deploy`, with SuperNodes for stations.

A SuperLink that was restarted does not take its runs up again. This app keeps a checkpoint of its own in ``top.state``:
the same ``flwr run`` once more goes on from there, and a round that a station has already done is not done twice.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedgs.deploy.logs import log, set_up
from fedgs.deploy.top_process import carry_out
from fedgs.deploy.top_state import shown_score
from fedgs.errors import FedgsError
from fedgs.flower.carrier import FlowerCarrier, SuperNodes
from fedgs.flower.options import process_of
from fedgs.flower.strategies import flower_rule

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the run to its last round."""
    set_up()
    try:
        process = process_of(context.run_config)
        set_up(process.log_level, process.log_json)
        nodes = SuperNodes(grid, len(process.stations))
        carriers = [FlowerCarrier(factory, nodes) for factory in range(len(process.stations))]
        last = carry_out(process, carriers, flower_rule(process.settings.server))
    except FedgsError as error:
        log.error(str(error))  # in one line; Flower adds the traceback
        raise
    score = shown_score(last.metrics[-1])
    shown = {"score": score} if score else {}
    log.info("run done", extra={"rounds": last.round, **shown, "model": process.state / "model.safetensors"})
