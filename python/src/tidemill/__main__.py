"""Commands for scripts with recipes: python -m tidemill init SCRIPT."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, Sequence

from . import _recipe
from ._run import run


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tidemill", description="Work with the recipes of a Python script.")
    commands = parser.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="write the tidemill.yaml of a script")
    init.add_argument("script")
    init.add_argument("--to", metavar="FILE", help="file to write (default: tidemill.yaml next to the script)")
    call = commands.add_parser("run", help="call the function of a recipe; runs do that by themselves")
    call.add_argument("script")
    call.add_argument("recipe", nargs="?", default=run.recipe, help="name of the recipe (default: that of TIDEMILL_RECIPE)")
    given = parser.parse_args(argv)
    if given.command == "run":
        _recipe.call(given.script, given.recipe)
        return 0
    try:
        print(f"wrote {_recipe.init(given.script, given.to)}")
    except (LookupError, OSError) as e:
        print(f"tidemill: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
