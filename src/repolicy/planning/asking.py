"""`repolicy.plan`: from a prior and a wish to a planner."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from repolicy.envs.addons import Wish, check_env, combined, names
from repolicy.envs.evaluation import check_fit
from repolicy.envs.making import probed
from repolicy.envs.names import EnvLike, env_name
from repolicy.errors import UsageError
from repolicy.objective import residual
from repolicy.planning.choosing import chosen
from repolicy.planning.copies import CopyModel
from repolicy.planning.learned_model import LearnedModel
from repolicy.planning.model import Model
from repolicy.planning.mujoco_model import CannotBatchError, MujocoModel
from repolicy.planning.planner import Planner, Search
from repolicy.planning.scoring import Score
from repolicy.planning.value import fitted_value, rollouts_in
from repolicy.policies.file import SavedPolicy
from repolicy.policies.policy import Policy
from repolicy.prepare.session import open_prior
from repolicy.prepare.states import check_learnable, density_in, wanted
from repolicy.prepare.weights import Weighing
from repolicy.readers.reading import Options
from repolicy.runs.ranks import one_thread
from repolicy.runs.settings import Settings

Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A planner, its prior's file, and what its choices were."""

    planner: Planner
    saved: SavedPolicy
    env: str
    addons: tuple[str, ...]
    notes: tuple[str, ...]


def plan(
    prior: Any,
    addon: Wish,
    *,
    env: EnvLike | None = None,
    omega: float | None = None,
    states: float | None = None,
    value: bool = False,
    search: Search | None = None,
    learned: bool = False,
    options: Options | None = None,
    trust: bool = False,
) -> Planner:
    """Return an agent that meets a wish without training, by simulating what it might do before each of its actions.

    Args:
        prior: a policy, its file, its run's folder, or the name of one that ships.
        addon: the wish: a name, a function, or a list of them.
        env: an id, or a function that makes one environment; by default the one that the prior's file names.
        omega: the weight of the prior; where neither this nor `states` nor `value` is given, what does best in short
            trials, else what a nat of its log-probability is worth.
        states: the price on states that the prior does not visit; the same holds.
        value: count what is still to come after a plan's end, by a value that is fitted to the prior's episodes.
        search: how plans are looked for: samples, horizon and so on.
        learned: simulate with a model that is learnt from the prior's own steps, in place of the environment's.
        options: how the prior's file is read, where that is another library's.
        trust: run code that the prior's file names.
    """
    return planned(prior, addon, env, omega, states, value, search or Search(), learned, options, trust).planner


def planned(
    prior: Any,
    addon: Wish,
    env: EnvLike | None,
    omega: float | None,
    states: float | None,
    value: bool,
    search: Search,
    learned: bool = False,
    options: Options | None = None,
    trust: bool = False,
    say: Say = lambda sentence: None,
) -> Planned:
    """Return the same with what was chosen; `say` hears of what takes a while."""
    residual(omega, states=states)  # which refuses weights that cannot be
    start = open_prior(prior, options, trust=trust)
    if start.saved is None:
        raise UsageError(f"{start.name} cannot be copied, and a planner asks its prior in every simulated step")
    policy = start.saved.policy
    choices = policy.actions.kind == "discrete"
    if choices and (len(policy.actions.sizes) > 1 or value or learned):
        what = "makes several choices at once" if len(policy.actions.sizes) > 1 else "makes choices"
        raise UsageError(
            f"{start.name} {what}: a tree is for one choice a step, in copies, and has no use for --value or --learned"
        )
    place, wishes = start.env(trust) if env is None else env_name(env), names(addon)
    if not wishes:
        raise UsageError("a planner needs a wish: name an add-on")
    check_env(wishes, place)
    wish = combined(wishes)
    if wish.with_past:
        raise UsageError(
            f"add-on {wish.with_past[0]!r} has a past, and a planner's simulations begin without one: customize with it"
        )
    check_fit(policy, probed(place), "the prior")
    by_weights, settings = "", Settings()
    tries = omega is None and states is None and not value and not choices
    if omega is None or states is None:
        weights, _, reward = Weighing(start.saved, place, wishes, settings, say).weights("--omega and --states")
        if weights is None:
            raise UsageError(
                "what a nat of the prior is worth cannot be told from its episodes: name --omega and --states"
            )
        omega = weights.omega if omega is None else omega
        states = weights.states if states is None else states
        by_weights = f"omega is {omega:.3g} and states {states:.3g}, by what a nat of the prior is worth of {reward}"
    model, of_model = model_of(policy, place, learned, search.seed, say)
    with one_thread():
        if states:
            check_learnable(policy)
        rollouts = rollouts_in(policy, place, search.seed) if states or tries or value else []
        density = density_in(rollouts, policy, wanted(settings.steps)) if states else None
        score = Score(wish, omega, states, search.discount, density, None)
        if tries:
            say("trying weights of the prior in a plan, which takes a minute or two (--omega goes without)")
            score, by_weights = chosen(policy, place, model, score, search, rollouts)
        elif value:
            score = replace(score, value=fitted_value(policy, rollouts, score, search.seed))
    notes = tuple(note for note in (by_weights, of_model) if note)
    search = search.filled(choices, score.value is not None)
    return Planned(Planner(policy, model, score, search), start.saved, place, wishes, notes)


def model_of(prior: Policy, env: str, learned: bool, seed: int, say: Say) -> tuple[Model, str]:
    """Return what simulates an environment, and what there is to say of it.

    It is a learned model where that is asked for, else MuJoCo in batches, else copies.
    """
    note = ""
    if learned:
        say("learning a model from the prior's steps, which takes up to a minute")
        model = LearnedModel(prior, env, seed)
        return model, model.note
    if prior.actions.kind == "continuous":
        try:
            return MujocoModel(env), note
        except CannotBatchError as error:
            note = f"{error}: copies of it are simulated, which is slow"
    return CopyModel(env, seed), note
