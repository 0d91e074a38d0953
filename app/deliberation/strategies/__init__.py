"""The strategies: each a generator that reads like its paper's pseudocode, registered here by name."""

from collections.abc import Mapping
from types import MappingProxyType

from app.deliberation.decider import StrategyDefinition
from app.deliberation.strategies.auto import AUTO
from app.deliberation.strategies.baselines import INDEPENDENT, SINGLE
from app.deliberation.strategies.best_of_n import BEST_OF_N
from app.deliberation.strategies.council import COUNCIL
from app.deliberation.strategies.debate import DEBATE
from app.deliberation.strategies.execute import EXECUTE
from app.deliberation.strategies.fuse import FUSE
from app.deliberation.strategies.tournament import TOURNAMENT
from app.deliberation.strategies.vote import VOTE

STRATEGIES: Mapping[str, StrategyDefinition] = MappingProxyType(
    {
        definition.name: definition
        for definition in (SINGLE, INDEPENDENT, BEST_OF_N, COUNCIL, DEBATE, FUSE, TOURNAMENT, VOTE, EXECUTE, AUTO)
    }
)
