"""python -m paramshard.run [arguments of torchrun] [--spares=N] SCRIPT [arguments of the script]"""

from __future__ import annotations

import functools
import logging
import sys

from torch.distributed.elastic.multiprocessing.errors import record

from paramshard.run.agent import Agent
from paramshard.run.torch_elastic import arguments_parser, launch


@record
def main() -> None:
    """Runs a training."""
    parser = arguments_parser()
    parser.prog = "python -m paramshard.run"
    parser.description = ("Starts a training as torchrun does. Workers are forked from a process that has imported "
                          "torch, so that a dead one is replaced within seconds.")
    parser.add_argument("--spares", type=int, default=0, metavar="N",
                        help="number of processes that wait to take a dead worker's place: for each GPU, or for a node "
                             "that trains on the CPU (default: 0)")
    arguments = parser.parse_args()
    if arguments.spares < 0:
        parser.error(f"--spares: want 0 or more, got {arguments.spares}")
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", level=logging.WARNING)
    launch(arguments, functools.partial(Agent, arguments.spares))


if __name__ == "__main__":
    sys.exit(main())
