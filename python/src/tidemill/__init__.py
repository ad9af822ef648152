"""Write trainers for Tidemill, and use a Tidemill from a program.

Inside a run, ``run`` has the inputs and writes the output. Elsewhere, ``Client`` calls a Tidemill.
"""

from ._champion import Champion
from ._export import SaveError
from ._run import Checkpoint, Inputs, NoInput, Run, run

__all__ = ["Champion", "Checkpoint", "Inputs", "NoInput", "Run", "SaveError", "run"]
