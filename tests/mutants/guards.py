"""All the guards."""

from tests.mutants.guard import Guard
from tests.mutants.losses import LOSSES
from tests.mutants.overload import OVERLOAD

GUARDS: tuple[Guard, ...] = (*LOSSES, *OVERLOAD)
