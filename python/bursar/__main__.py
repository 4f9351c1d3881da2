"""The command: ``python -m bursar``."""

import sys

if not __package__:
    # Started by the path of this file, as the processes of a run are.
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bursar._command import main

sys.exit(main())
