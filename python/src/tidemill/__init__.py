"""Write trainers for Tidemill, and use a Tidemill from a program.

Inside a run, ``run`` has the inputs and writes the output. Elsewhere, ``Client`` calls a Tidemill.
"""

from ._champion import Champion
from ._http import TidemillError
from ._onnx import SaveError
from ._run import Checkpoint, Inputs, NoInput, Run, run
from ._stream import Tailed
from ._client import Client, Stored, event
from ._recipe import Recipe, recipe

__all__ = ["Champion", "Checkpoint", "Client", "Inputs", "NoInput", "Recipe", "Run", "SaveError", "Stored", "Tailed", "TidemillError",
           "event", "recipe", "run"]
