"""The ClientApp of a factory: a thin bridge between its SuperNode and its station on the same machine.

    flower-supernode --node-config 'factory=0 station="/var/lib/fedgs/station-1"' …

``factory`` is the station's number, 0 to M − 1; ``station`` its state folder, whose socket only the station's user may
use. Flower starts this anew for each message, so it imports little and, above all, no torch, and keeps no state. The
station gives the same order the same answer, so asking again is safe.
"""

import sys
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedgs.deploy.process import SOCKET
from fedgs.deploy.transport import call_station
from fedgs.errors import ConfigError, FedgsError
from fedgs.flower.messages import FACTORY, FACTS, order_bytes, result_content

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Let the station carry out one round."""
    try:
        factory, station = site(context)
        answer = call_station(station / SOCKET, order_bytes(message.content, factory))
        return Message(result_content(answer), reply_to=message)
    except FedgsError as error:
        return _refused(message, error)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Say which factory this is."""
    try:
        facts = ConfigRecord({FACTORY: site(context)[0]})
        return Message(RecordDict({FACTS: facts}), reply_to=message)
    except FedgsError as error:
        return _refused(message, error)


def site(context: Context) -> tuple[int, Path]:
    """Return the number of the factory and the state folder of its station."""
    factory, station = context.node_config.get("factory"), context.node_config.get("station")
    if type(factory) is not int or factory < 0 or not isinstance(station, str) or not station:
        raise ConfigError(
            f"the SuperNode has factory={factory!r} and station={station!r}; start it with "
            "--node-config 'factory=0 station=\"DIR\"': its number from 0 on, and the --state folder of its station"
        )
    return factory, Path(station)


def _refused(message: Message, error: FedgsError) -> Message:
    print(f"fedgs: {error}", file=sys.stderr)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
