"""All the guards."""

from tests.mutants.archives import ARCHIVES
from tests.mutants.doctor import DOCTOR
from tests.mutants.durability_guards import DURABILITY_GUARDS
from tests.mutants.entrances import ENTRANCES
from tests.mutants.guard import Guard
from tests.mutants.inputs import INPUT_GUARDS
from tests.mutants.overload import OVERLOAD
from tests.mutants.plans import PLANS
from tests.mutants.readings import READINGS_GUARDS
from tests.mutants.signatures import SIGNATURES
from tests.mutants.stored_inputs import STORED_INPUTS
from tests.mutants.tools import TOOL_GUARDS
from tests.mutants.traces import TRACES
from tests.mutants.workers import WORKERS
from tests.mutants.workspaces import WORKSPACE_GUARDS

GUARDS: tuple[Guard, ...] = (
    *DURABILITY_GUARDS,
    *OVERLOAD,
    *PLANS,
    *SIGNATURES,
    *ENTRANCES,
    *ARCHIVES,
    *WORKERS,
    *READINGS_GUARDS,
    *TRACES,
    *DOCTOR,
    *TOOL_GUARDS,
    *WORKSPACE_GUARDS,
    *INPUT_GUARDS,
    *STORED_INPUTS,
)
