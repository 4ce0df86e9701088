"""The program `semel` with the bug that the environment variable ROW_MUTANT names."""

import os

from semel.cli.main import main
from tests.row_mutants.registry import apply_mutant
from tests.spec.process import MUTANT

apply_mutant(os.environ[MUTANT])
main()
