"""The text library under the package's name: in a checkout, the top-level folder data_utils/.

Installed, that folder is `txl.data_utils` itself and takes the place of this file, so that no top-level name
`data_utils` is claimed, which other projects have too.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "data_utils")]
