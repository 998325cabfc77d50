"""The commands that learn a wish which nobody writes down: ask, takeover, infer, learn-wish."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal

from repolicy.cli.options import Command, Positional, Repeated, RunsPolicy
from repolicy.errors import UsageError
from repolicy.loading import read_bytes
from repolicy.readers.reading import Options
from repolicy.runs import Terminal
from repolicy.text import counted, usual_out


@dataclass(frozen=True, kw_only=True)
class Ask(RunsPolicy):
    """Write a page that asks which of two clips is better, for `repolicy infer` to learn the wish from the answers.

    Example: repolicy ask halfcheetah --pairs 20 --out runs/ask
    """

    policy: Annotated[str, Positional("POLICY")]
    """Who acts in the clips: a policy's file, a run's folder, or a name that ships."""
    pairs: int = 20
    """How many pairs of clips."""
    seconds: float = 2.0
    """How long a clip is."""
    noise: float = 2.0
    """How far the clips deviate from the mean action, in units of the policy's own samples."""
    wish: str = ""
    """The wish that earlier answers told, a file of `infer`: ask about the pairs that would tell most about it."""
    question: str = "Which of the two is better?"
    """What stands above the clips."""
    width: int = 320
    """Width of a clip; its height is two thirds of that."""
    seed: int = 0
    """Of the environments and the deviations; another one gives other pairs."""
    out: Path | None = None
    """Folder of the page and of its pairs; by default runs/POLICY-ask-SEED."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies.storage import check_writable
        from repolicy.priors import check_no_plan
        from repolicy.runs import one_thread
        from repolicy.wishes.ask_page import ask

        terminal = Terminal()
        check_no_plan(self.policy)
        found, env = self.open_policy(self.policy)
        out = self.out or usual_out(self.policy, f"ask-{self.seed}")
        check_writable(out / "ask.html")
        if (out / "ask.html").exists():
            raise UsageError(f"{out} has a page already, which its answers need: name another --out")
        with one_thread():
            made = ask(
                found, env, out, self.pairs, self.seconds, self.noise, self.seed, self.wish, self.question, self.width,
                terminal.say,
            )  # fmt: skip
        go_on = f"repolicy infer ANSWERS --asked {quote(str(out))} --features ..."
        terminal.say(f"open {out / 'ask.html'}, answer, save, and then: {go_on}")
        return {"folder": str(out), "page": made.page, "pairs": len(made.seeds), "env": made.env}


@dataclass(frozen=True)
class Beside:
    """How steps of a record count, and what θ is measured in."""

    features: str = ""
    """What the wish is a sum of: entries such as 'next[2:8]^1,action^2' (^1 is the absolute value, ^2 the square), or
    file.py:function. Without any, small networks are fitted to answers."""
    alpha: float | None = None
    """α̂, the temperature at which the policy is customized: the unit of θ where a person took over."""
    before: int = 10
    """So many steps before a take-over are bad, and count for nothing."""
    settle: int = 0
    """So many steps after a take-over count for nothing, while the person leaves a bad state."""
    passed: float = 1.0
    """What a step that the person let pass weighs beside one of their own."""
    length: int = 10
    """Over how many steps features are summed: of a take-over that is shorter, with what the policy does then."""
    alone: int = 16_000
    """How many steps of the policy alone yours are compared with: fewer where the simulator is slow."""


OF_RECORDS = ("policy", "wish", "env", "alpha", "before", "settle", "passed", "length", "alone")


@dataclass(frozen=True, kw_only=True)
class Infer(Beside, RunsPolicy):
    """Learn a wish from answers or from a record of take-overs, as a file that every command takes as an add-on.

    Example: repolicy infer answers.jsonl --asked runs/ask --features 'next[2:8]^1' --out wish.safetensors
    """

    data: Annotated[tuple[str, ...], Positional("DATA")]
    """Files that `ask`'s page saved, or records: of `takeover`, NumPy's .npz, or LeRobot's .parquet."""
    asked: Repeated = ()
    """A folder that `ask` wrote, whose page was answered. Repeatable."""
    policy: str = ""
    """For a record: the policy beside which it was made."""
    wish: str = ""
    """For a record: the wish to which that policy is customized; none for a prior."""
    env: str | None = None
    """For a record that does not say it: its environment."""
    out: Path = Path("wish.safetensors")
    """The wish's file."""

    def run(self) -> dict[str, Any]:
        from repolicy.policies.storage import check_writable
        from repolicy.runs import one_thread

        if self.out.suffix != ".safetensors":
            raise UsageError(f"--out {self.out} does not end in .safetensors, and a wish is known by that")
        check_writable(self.out)  # before the work, which would be lost
        if self.out.exists():
            raise UsageError(f"{self.out} is there already, and runs may have it as their add-on: name another --out")
        terminal = Terminal()
        with one_thread():
            wish, more = self._of_answers(terminal) if self.asked else self._of_records()
        wish.write(self.out)
        errors = wish.covariance.diagonal() ** 0.5
        if wish.names:
            rows = [[name, f"{t:.3g}", f"{e:.2g}"] for name, t, e in zip(wish.names, wish.theta, errors, strict=True)]
            terminal.numbers(f"a wish in {wish.env}, from {wish.source}: {self.out}", ["", "θ", "error"], rows)
            if (abs(wish.theta) < errors).all():
                terminal.say("no θ is larger than its error, so this is mostly chance: answer or record more")
        return {
            "file": str(self.out), "env": wish.env, "from": wish.source,
            "theta": dict(zip(wish.names, wish.theta.tolist(), strict=True)),
            "error": dict(zip(wish.names, errors.tolist(), strict=True)),
        } | more  # fmt: skip

    def _of_answers(self, terminal: Any) -> tuple[Any, dict[str, Any]]:
        from repolicy.wishes.pairs import Pairs, learn_from_answers, read_answers, std_of_reward

        for each in fields(self):
            if each.name in OF_RECORDS and getattr(self, each.name) != each.default:
                for_records = f"--{each.name} is for a record of take-overs, --asked for answers"
                raise UsageError(f"{for_records}: leave out one of them")
        pages = [Pairs.read(Path(folder)) for folder in self.asked]
        answers = [read_answers(Path(name), pages) for name in self.data]
        wish = learn_from_answers(pages, answers, self.features)
        spread = std_of_reward(pages, wish)
        judged = [pair for of_one in answers for pair, value in of_one.items() if value is not None]
        unknown = sum(map(len, answers)) - len(judged)
        if spread <= 1e-12:  # what is left of answers that contradict each other is rounding
            raise UsageError("the answers tell no difference between clips, so nothing can be learnt: answer some more")
        terminal.say(
            f"{counted(len(judged), 'answer')} to {counted(len({*judged}), 'pair')}, in each of "
            f"{counted(len(answers), 'file')} the last to a pair, and {unknown} times it could not be told; over the "
            f"clips' steps the reward has a standard deviation of {spread:.3g}; --addon "
            f"{quote(str(self.out))}={1 / spread:.3g} makes it 1"
        )
        return wish, {"answers": len(judged), "spread": spread}

    def _of_records(self) -> tuple[Any, dict[str, Any]]:
        from repolicy.envs import open_wish
        from repolicy.priors import open_agent
        from repolicy.wishes.learning_loop import infer
        from repolicy.wishes.record import Labels, Record

        if any(read_bytes(Path(name)).lstrip().startswith(b'{"page"') for name in self.data):
            raise UsageError("answers need the folder that `repolicy ask` wrote: name it with --asked")
        records = [Record.read(Path(name), self.env or "") for name in self.data]
        for name in ("features", "policy", "alpha"):
            if getattr(self, name) in ("", None):
                raise UsageError(f"a wish is inferred from a record beside its policy: name --{name}")
        if not any(record.person.any() for record in records):
            raise UsageError("in the record nobody took over: the policy is as wanted, or record more")
        found = open_agent(self.policy, self.reading, self.trust)
        earlier = open_wish(self.wish) if self.wish else None
        labels = Labels(self.before, self.settle, self.passed)
        assert self.alpha is not None
        wish = infer(records, found, self.features, self.alpha, earlier, labels, self.length, self.seed, self.alone)
        return wish, {"rate": records[-1].rate}


@dataclass(frozen=True)
class Takeover(RunsPolicy):
    """Let a policy act beside you, and record who did what: Space takes over, Enter ends well, Backspace drops.

    Example: repolicy takeover runs/mine --env CartPole-v1 --steps 2000 --out record.jsonl
    """

    policy: Annotated[str, Positional("POLICY")]
    """A policy's file, a run's folder, or a name that ships."""
    person: str = ""
    """file.py:function(observation, proposed) instead of keys, such as what reads your joystick; its attribute `wants`,
    of (observation, proposed, acts now), may say when to take over."""
    keys: Literal["window", "terminal"] = "window"
    """Where your keys come from. Without a display: terminal."""
    steps: int = 2000
    """How many steps."""
    out: Path = Path("record.jsonl")
    """The record, a line a step."""
    resume: bool = False
    """Go on with a record, with a new episode."""

    def run(self) -> dict[str, Any]:
        from repolicy.priors import check_no_plan
        from repolicy.runs import one_thread
        from repolicy.wishes.learning_loop import record

        check_no_plan(self.policy)
        found, env = self.open_policy(self.policy)
        with one_thread(), who(self.person, self.keys, env) as (act, keys):
            made = record(found, env, self.out, self.steps, act, keys, self.seed, self.resume)
        Terminal().say(f"{self.out}: {len(made.person):,} steps, {made.rate:.1%} of them yours")
        return {"file": str(self.out), "env": env, "steps": len(made.person), "rate": made.rate}


@contextmanager
def who(person: str, kind: str, env: str) -> Iterator[tuple[Any, Any]]:
    """Yield what the person does, and where their keys come from; none where it says itself when they want to act."""
    from repolicy.envs import make_one_env
    from repolicy.loading import load_object
    from repolicy.wishes.keys import TerminalKeys, WindowKeys
    from repolicy.wishes.takeover import by_keys

    act = load_object(person, "person") if person else None
    if act is not None and not callable(act):
        raise UsageError(f"the person {person!r} is not a function")
    if hasattr(act, "wants"):
        yield act, None
        return
    with closing(make_one_env(env)) as made:
        space = made.action_space
    with closing(TerminalKeys() if kind == "terminal" else WindowKeys()) as keys:
        yield act or by_keys(keys, space), keys


@dataclass(frozen=True, kw_only=True)
class LearnWish(Beside, Command):
    """Record, infer and customize in rounds, until you seldom take over.

    Example: repolicy learn-wish halfcheetah --person me.py:act --features 'next[2:8]^1' --omega 0.2 --alpha 0.1
    """

    STOP_ADVICE: ClassVar = "; the same command goes on"
    prior: Annotated[str, Positional("PRIOR")]
    """The policy to customize."""
    features: str = field()  # which takes away the default that it has in `Beside`
    alpha: float = field()
    env: str | None = None
    """Environment, of Gymnasium's or your own; by default the one that the prior was trained in."""
    person: str = ""
    """As in `repolicy takeover`."""
    keys: Literal["window", "terminal"] = "window"
    """Where your keys come from."""
    omega: float
    """ω′: the weight of log prior."""
    states: float = 0.0
    """The price on states that the prior does not visit."""
    updates: int = 2
    """How often a round infers and customizes. The first tells how far the policy follows a wish, for the next."""
    record_steps: int = 2000
    """How many steps you watch in each round."""
    rounds: int = 5
    """How many rounds at most."""
    rate: float = 0.05
    """The share of steps that are yours below which all is well."""
    customize_steps: int = 300_000
    """How long each customizing trains."""
    seed: int = 0
    """Of everything."""
    out: Path | None = None
    """Folder; what lies in it is not done again. By default runs/PRIOR-wish-SEED."""
    trust: bool = False
    """Run code that the prior's file names as its environment."""

    def run(self) -> dict[str, Any]:
        from repolicy.envs import env_from_card
        from repolicy.objective import residual
        from repolicy.priors import check_no_plan, open_agent
        from repolicy.runs import Settings
        from repolicy.wishes.learning_loop import Teaching, learn_wish
        from repolicy.wishes.record import Labels

        check_no_plan(self.prior)
        found = open_agent(self.prior, Options(), self.trust)
        env = self.env or env_from_card(found.card, found.path, self.trust)
        out = self.out or usual_out(self.prior, f"wish-{self.seed}")
        settings: dict[str, Any] = {"steps": self.customize_steps, "seed": self.seed}
        residual(self.omega, self.alpha, self.states)
        Settings(**settings)  # which say before anything is recorded what they do not take
        teaching = Teaching(
            self.prior, env, self.features, self.omega, self.alpha, self.states,
            Labels(self.before, self.settle, self.passed), self.length, settings, self.seed, self.trust, self.updates,
            self.alone,
        )  # fmt: skip
        terminal = Terminal()
        with who(self.person, self.keys, env) as (act, keys):
            rounds = learn_wish(
                teaching, out, act, keys=keys, steps=self.record_steps, rounds=self.rounds, rate=self.rate,
                say=terminal.say,
            )  # fmt: skip
        rates = [each.rate for each in rounds]
        results: dict[str, Any] = {"folder": str(out), "env": env, "rates": rates}
        if not rounds:
            return results | {"reached": False, "report": None, "policy": None}
        best = min(rounds, key=lambda each: each.rate)
        reached = rates[-1] < self.rate
        came = "does as you wish" if reached else f"came nearest: {best.rate:.1%} of its steps were yours"
        terminal.say(f"{best.policy} {came}", f"the rounds are in {out / 'report.html'}")
        return results | {"reached": reached, "report": str(out / "report.html"), "policy": best.policy}
