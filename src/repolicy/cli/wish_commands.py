"""The commands that learn a wish (a reward) from a person's answers or take-overs: ask, takeover, infer, learn-wish."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal

from repolicy.cli.options import Command, Positional, Repeated, RunsPolicy
from repolicy.errors import UsageError
from repolicy.files import check_writable, read_bytes
from repolicy.objective import residual
from repolicy.runs import Settings, Terminal
from repolicy.text import default_out, format_count, printable, with_minus


@dataclass(frozen=True, kw_only=True)
class Ask(RunsPolicy):
    """Write a page that asks which of two clips is better, for `repolicy infer` to learn the wish from the answers.

    Example: repolicy ask halfcheetah --pairs 20 --out runs/ask
    """

    policy: Annotated[str, Positional("POLICY")]
    """The policy that acts in the clips: a policy's file, a run's folder, or a name that ships."""
    pairs: int = 20
    """Number of pairs of clips."""
    seconds: float = 2.0
    """Length of a clip."""
    noise: float = 2.0
    """Deviation of the clips from the mean action, as a multiple of the deviation of the policy's own samples. Choices
    are sampled as they are."""
    wish: str = ""
    """A wish learnt from earlier answers, a file of `infer`; the new pairs are those that say most about it."""
    question: str = "Which of the two is better?"
    """The title above the clips."""
    width: int = 320
    """Width of a clip; its height is two thirds of that."""
    seed: int = 0
    """Seed of the environments and the deviations; another one gives other pairs."""
    out: Path | None = None
    """Folder of the page and its pairs; by default runs/POLICY-ask-SEED."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies import one_thread
        from repolicy.priors import check_no_plan
        from repolicy.wishes.ask_page import ask

        terminal = Terminal()
        check_no_plan(self.policy)
        opened, env = self.open_policy(self.policy)
        out = self.out or default_out(self.policy, f"ask-{self.seed}")
        check_writable(out / "ask.html")
        if (out / "ask.html").exists():
            raise UsageError(f"{out} has a page already, which its answers need: name another --out")
        with one_thread():
            pairs = ask(
                opened, env, out, self.pairs, self.seconds, self.noise, self.seed, self.wish, self.question, self.width,
                terminal.say,
            )  # fmt: skip
        command = f"repolicy infer ANSWERS --asked {quote(str(out))} --features ..."
        terminal.say(f"open {out / 'ask.html'}, answer, save, and then: {command}")
        return {"folder": str(out), "page": pairs.page, "pairs": len(pairs.seeds), "env": pairs.env}


@dataclass(frozen=True)
class InferenceOptions:
    """Options for inferring a wish from a record of take-overs."""

    features: str = ""
    """The features whose weighted sum is the wish: entries such as 'next[2:8]^1,action^2' (^1 is the absolute value, ^2
    the square), or file.py:function."""
    alpha: float | None = None
    """The larger of the ω′ and α̂ that you customize with."""
    before: int = 10
    """Number of steps before a take-over that count for nothing, because they led to it."""
    passed: float = 1.0
    """Weight of a step that the person let pass, relative to 1 for a step of their own."""
    length: int = 10
    """Number of steps over which features are summed; a shorter take-over is continued by the policy."""
    alone: int = 16_000
    """Number of steps of the policy alone to compare yours with; choose fewer if the simulator is slow."""


@dataclass(frozen=True, kw_only=True)
class Infer(InferenceOptions, RunsPolicy):
    """Learn a wish from answers or from records of take-overs, as a file that every command takes as an add-on.

    Example: repolicy infer answers.jsonl --asked runs/ask --features 'next[2:8]^1' --out wish.safetensors
    """

    data: Annotated[tuple[str, ...], Positional("DATA")]
    """Files saved by the page of `ask`, or records: those of `takeover`, NumPy's .npz, or LeRobot's .parquet."""
    asked: Repeated = ()
    """For answers: the folder that `ask` wrote; without --features small networks are fitted to them. Repeatable."""
    policy: str = ""
    """For a record: the policy that acted in it, or in one of several."""
    wish: str = ""
    """For a record: the wish to which that policy was customized, with its weight; none for a prior."""
    env: str | None = None
    """For a record that names no environment, or code as its environment: that name."""
    out: Path = Path("wish.safetensors")
    """The wish's file."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies import one_thread
        from repolicy.wishes.inference import may_be_chance

        if self.out.suffix != ".safetensors":
            raise UsageError(f"--out {self.out} does not end in .safetensors, by which a wish is recognized")
        check_writable(self.out)  # before the work, which would be lost
        if self.out.exists():
            raise UsageError(f"{self.out} is there already, and runs may have it as their add-on: name another --out")
        terminal = Terminal()
        with one_thread():
            wish, more = self._learn_from_answers(terminal) if self.asked else self._infer_from_records()
        wish.write(self.out)
        errors = wish.covariance.diagonal() ** 0.5
        if wish.names:
            weights = zip(wish.names, wish.theta, errors, strict=True)
            rows = [[name, with_minus(f"{theta:.3g}"), with_minus(f"{error:.2g}")] for name, theta, error in weights]
            terminal.numbers(f"a wish in {wish.env}, from {wish.source}: {self.out}", ["", "θ", "error"], rows)
            if self.asked and (abs(wish.theta) < errors).all():  # answers: θ is shrunk towards 0
                terminal.say("no θ is larger than its error, so this is mostly chance: answer more")
            elif not self.asked and may_be_chance(wish.theta, errors, wish.groups):
                terminal.say("no θ is beyond chance (5 %): record more")
        return {
            "file": str(self.out), "env": wish.env, "from": wish.source,
            "theta": dict(zip(wish.names, wish.theta.tolist(), strict=True)),
            "error": dict(zip(wish.names, errors.tolist(), strict=True)),
        } | more  # fmt: skip

    def _learn_from_answers(self, terminal: Terminal) -> tuple[Any, dict[str, Any]]:
        """Return the wish learnt from answers, and further values for --json."""
        from repolicy.addons import wish_request
        from repolicy.wishes.pairs import Pairs, learn_from_answers, read_answers, std_of_reward

        for name in ("env", "seed", "alpha", "before", "passed", "length", "alone", "policy", "wish"):
            if getattr(self, name) != getattr(Infer, name):
                raise UsageError(f"--{name} is for a record of take-overs, --asked for answers: leave out one of them")
        pages = [Pairs.read(Path(folder)) for folder in self.asked]
        answers = read_answers([Path(name) for name in self.data], pages)
        wish = learn_from_answers(pages, answers, self.features)
        spread = std_of_reward(pages, wish)
        decided = [pair for values in answers for pair, value in values.items() if value is not None]
        undecided = sum(map(len, answers)) - len(decided)
        if spread <= 1e-12:  # contradictory answers leave a reward of rounding errors
            raise UsageError("the answers tell no difference between clips, so nothing can be learnt: answer some more")
        terminal.say(
            f"{format_count(len(decided), 'answer')} to {format_count(len({*decided}), 'pair')} in "
            f"{format_count(len(answers), 'file')} (and {undecided} times “cannot tell”); over the clips' steps the "
            f"reward has a standard deviation of {spread:.3g}; --addon "
            f"{quote(wish_request(self.out, self.features))}={1 / spread:.3g} makes it 1"
        )
        return wish, {"answers": len(decided), "spread": spread}

    def _infer_from_records(self) -> tuple[Any, dict[str, Any]]:
        """Return the wish inferred from records of take-overs, and further values for --json."""
        from repolicy.addons import check_trust, weighted_wish
        from repolicy.priors import open_agent
        from repolicy.wishes.learning_loop import infer
        from repolicy.wishes.record import Labels, Record

        if any(read_bytes(Path(name)).lstrip().startswith(b'{"page"') for name in self.data):
            raise UsageError("answers need the folder that `repolicy ask` wrote: name it with --asked")
        records = [Record.read(Path(name), self.env or "") for name in self.data]
        for name, record in zip(self.data, records, strict=True):
            check_trust(name, self.trust, env=None if self.env else record.env)
        for name in ("features", "policy", "alpha"):
            if getattr(self, name) in ("", None):
                raise UsageError(f"a wish is inferred from a record beside its policy: name --{name}")
        if not any(record.person.any() for record in records):
            raise UsageError("in the record nobody took over: the policy is as wanted, or record more")
        opened = open_agent(self.policy, self.reading, self.trust)
        earlier = weighted_wish(self.wish) if self.wish else None
        known = [name for name in opened.card.get("request", {}).get("addons", ()) if ".safetensors" in name]
        if known and earlier is None:
            missing = f"without --wish {quote(printable(known[0], 200))}, what is inferred comes on top of it"
            Terminal().say(f"{self.policy} was customized to a learnt wish: {missing}")
        labels = Labels(self.before, self.passed)
        assert self.alpha is not None
        wish = infer(records, opened, self.features, self.alpha, earlier, labels, self.length, self.seed, self.alone)
        return wish, {"rate": records[-1].rate}


@dataclass(frozen=True)
class Takeover(RunsPolicy):
    """Record a policy that you can take over: Space takes over, Enter ends the episode, Backspace drops it.

    Example: repolicy takeover runs/mine --env CartPole-v1 --steps 2000 --out record.jsonl
    """

    policy: Annotated[str, Positional("POLICY")]
    """A policy's file, a run's folder, or a name that ships."""
    person: str = ""
    """file.py:function of (observation, proposed action) that returns your action, such as one that reads a joystick.
    Its attribute `wants`, a function of (observation, proposed action, acts now), may decide when to take over."""
    keys: Literal["window", "terminal"] = "window"
    """Where keys are read; without a display choose terminal."""
    steps: int = 2000
    """Number of steps of the whole record, with those before --resume."""
    out: Path = Path("record.jsonl")
    """The record, with one line for each step."""
    resume: bool = False
    """Continue a record, with a new episode."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies import one_thread
        from repolicy.priors import check_no_plan
        from repolicy.wishes.learning_loop import record

        check_no_plan(self.policy)
        opened, env = self.open_policy(self.policy)
        with one_thread(), person_and_keys(self.person, self.keys, env) as (act, keys):
            steps = record(opened, env, self.out, self.steps, act, keys, self.seed, self.resume)
        Terminal().say(f"{self.out}: {len(steps.person):,} steps, {steps.rate:.1%} of them yours")
        return {"file": str(self.out), "env": env, "steps": len(steps.person), "rate": steps.rate}


@contextmanager
def person_and_keys(person: str, source: str, env: str) -> Iterator[tuple[Any, Any]]:
    """Yield the function that returns the person's actions, and the keys; None if the function has `wants`."""
    from repolicy.envs import make_one_env
    from repolicy.loading import load_function
    from repolicy.wishes.keys import TerminalKeys, WindowKeys
    from repolicy.wishes.takeover import by_keys

    act = load_function(person, "person") if person else None
    if hasattr(act, "wants"):
        yield act, None
        return
    with closing(make_one_env(env)) as opened_env:
        space = opened_env.action_space
    with closing(TerminalKeys() if source == "terminal" else WindowKeys()) as keys:
        yield act or by_keys(keys, space), keys


@dataclass(frozen=True, kw_only=True)
class LearnWish(InferenceOptions, Command):
    """Record, infer and customize in rounds, until you seldom take over.

    Example: repolicy learn-wish halfcheetah --person me.py:act --features 'next[2:8]^1' --omega 0.2 --alpha 0.1
    """

    STOP_ADVICE: ClassVar = "; the same command goes on"
    prior: Annotated[str, Positional("PRIOR")]
    """The policy to customize."""
    features: str = field()  # field() removes the default of InferenceOptions: here both are required
    alpha: float = field()
    """α̂, as for `repolicy customize`."""
    env: str | None = None
    """Environment, of Gymnasium's or your own; by default the one that the prior was trained in."""
    person: str = ""
    """file.py:function of (observation, proposed action) that returns your action; without it, keys."""
    keys: Literal["window", "terminal"] = "window"
    """Where keys are read, as in `repolicy takeover`."""
    omega: float
    """ω′: the weight of log prior."""
    states: float = 0.0
    """The price on states that the prior does not visit."""
    updates: int = 2
    """Number of times that a round infers and customizes. The first shows how far the policy follows a wish."""
    record_steps: int = 2000
    """Number of recorded steps in each round."""
    rounds: int = 5
    """Maximum number of rounds."""
    rate: float = 0.05
    """The rounds end when the share of steps that are yours is below this."""
    customize_steps: int = 300_000
    """Steps of each training."""
    seed: int = 0
    """Seed of records, inference and training."""
    out: Path | None = None
    """Folder; work that it contains is not repeated. By default runs/PRIOR-wish-SEED."""
    trust: bool = False
    """Run code that the prior's file names as its environment."""

    def run(self) -> dict[str, Any]:
        from repolicy.addons import env_from_card
        from repolicy.policies import one_thread
        from repolicy.priors import check_no_plan, open_agent
        from repolicy.wishes.learning_loop import Teaching, learn_wish, round_to_take
        from repolicy.wishes.record import Labels

        check_no_plan(self.prior)
        opened = open_agent(self.prior, trust=self.trust)
        env = self.env or env_from_card(opened.card, opened.path, self.trust)
        out = self.out or default_out(self.prior, f"wish-{self.seed}")
        settings: dict[str, Any] = {"steps": self.customize_steps, "seed": self.seed}
        # These two raise for values that they do not take, before anything is recorded.
        residual(self.omega, self.alpha, self.states)
        Settings(**settings)
        teaching = Teaching(
            self.prior, env, self.features, self.omega, self.alpha, self.states,
            Labels(self.before, self.passed), self.length, settings, self.seed, self.trust, self.updates,
            self.alone,
        )  # fmt: skip
        terminal = Terminal()
        with one_thread(), person_and_keys(self.person, self.keys, env) as (act, keys):
            rounds = learn_wish(
                teaching, out, act, keys=keys, steps=self.record_steps, rounds=self.rounds, rate=self.rate,
                say=terminal.say,
            )  # fmt: skip
        rates = [each.rate for each in rounds]
        results: dict[str, Any] = {"folder": str(out), "env": env, "rates": rates}
        if not rounds:
            return results | {"reached": False, "report": None, "policy": None}
        reached = rates[-1] < self.rate
        best = rounds[-1] if reached else round_to_take(rounds)
        outcome = "does as you wish" if reached else f"came nearest: {best.rate:.1%} of its steps were yours"
        if best is rounds[0] and min(rates) < best.rate:
            outcome += "; no other share is smaller by two errors"
        terminal.say(f"{best.policy} {outcome}", f"the rounds are in {out / 'report.html'}")
        return results | {"reached": reached, "report": str(out / "report.html"), "policy": best.policy}
