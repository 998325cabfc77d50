"""Break the mathematics and the checks on purpose, one place at a time: every break must turn a test red.

    python benchmarks/mutate.py
    python benchmarks/mutate.py learning/worker sign      # those whose file or description holds one of these

Each mutant is a copy of the package with one piece of text replaced; the tests named beside it run against that copy.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mutant:
    file: str
    old: str
    new: str
    tests: str
    what: str


OBJECTIVE, PPO, WORKER = "tests/test_objective.py", "tests/learning/test_ppo.py", "tests/learning/test_worker.py"
LIMITS = "tests/learning/test_limits.py"
POLICY, PRIVILEGED = "tests/policies/test_policy.py", "tests/learning/test_privileged.py"
STATES, WORTH = "tests/prepare/test_states.py", "tests/prepare/test_worth.py"
DIAL = (
    "tests/policies/test_conditioned_policy.py tests/policies/test_several_policy.py tests/envs/test_envs.py "
    "tests/learning/test_conditioned_run.py tests/learning/test_several_run.py"
)
SQUASHED = "tests/hosts/test_squashed.py"
GAITS = "tests/envs/test_gaits.py"
DQN, SAC = "tests/rql/test_dqn.py", "tests/rql/test_sac.py"
VARYING = "tests/many/test_varying.py"
CARRYING = "tests/policies/test_carrying.py"
POOL, GENERATIVE = "tests/many/test_pool.py", "tests/prepare/test_generative.py"
CHOOSING = "tests/planning/test_choosing.py"
SAMPLING, PLANNER = "tests/planning/test_sampling.py", "tests/planning/test_planner.py"
INFERENCE, PREFERENCES = "tests/wishes/test_inference.py", "tests/wishes/test_preferences.py"
TAKEOVER, ASK, WISH_FILE = "tests/wishes/test_takeover.py", "tests/wishes/test_ask.py", "tests/envs/test_wish_file.py"
DOORS = "tests/cli/test_doors_files.py tests/cli/test_doors_output.py"
LLM = {
    name: f"tests/llm/test_{name}.py"
    for name in ("losses", "dpo", "cross_entropy", "grpo", "q_adapter", "doors", "mixing", "budget", "before")
}
LLM["mixing"] = "tests/llm/test_dial.py"
MUTANTS = [
    Mutant("hosts/method.py", "log_policy = log_policy - slope", "log_policy = log_policy + slope", SQUASHED, "sign of the slope of tanh in a host"),
    Mutant("hosts/method.py", "self.squashes = squashes(prior)", "self.squashes = False", SQUASHED, "a density before tanh beside one behind it"),
    Mutant("hosts/kept_prior.py", "head.log_std.expand(ROWS, width).mean(0)", "head.log_std.expand(ROWS, width).exp().mean(0)", SQUASHED, "a std for its logarithm"),
    Mutant("wishes/inference.py", "return (person - policy) / alpha", "return (policy - person) / alpha", INFERENCE, "a wish away from the person"),
    Mutant("wishes/inference.py", "return (person - policy) / alpha", "return person - policy", INFERENCE, "the gradient without the temperature"),
    Mutant("wishes/inference.py", "features @ step / alpha + np.log(chances)", "features @ step / alpha", INFERENCE, "trajectories weighed without their chances"),
    Mutant("wishes/inference.py", "return Theta(before + step / scale,", "return Theta(step / scale,", INFERENCE, "each inference begins anew"),
    Mutant("wishes/inference.py", "((mine, ours), (other, found))", "((mine, ours),)", INFERENCE, "the error forgets the policy's own noise"),
    Mutant("wishes/inference.py", "theirs) < least:", "theirs) < 0.0:", INFERENCE, "weights beyond what trajectories tell"),
    Mutant("wishes/inference.py", "return person[0] - known(person[1]) @ (one + other) / 2, left", "return person[0], left", INFERENCE, "a person to blame for where they took over"),
    Mutant("wishes/preferences.py", "(answers - chance) - precision @ theta", "(answers - chance)", PREFERENCES, "answers without what is believed beforehand"),
    Mutant("wishes/preferences.py", "- size * np.log(spread)", "", PREFERENCES, "every spread is as likely"),
    Mutant("wishes/preferences.py", "Theta(theta / scale, covariance / np.outer(scale, scale))", "Theta(theta / scale, covariance)", PREFERENCES, "errors without the features' units"),
    Mutant("wishes/preferences.py", "covariance -= weight[best]", "covariance -= 0.0", PREFERENCES, "a pair that was chosen tells as much again"),
    Mutant("wishes/preferences.py", "told = weight * np", "told = np", PREFERENCES, "pairs whose answer is known"),
    Mutant("wishes/preferences.py", "rewards[:, 0] - rewards[:, 1]", "rewards[:, 1] - rewards[:, 0]", PREFERENCES, "networks that prefer the worse"),
    Mutant("envs/gaits.py", "return before * ~first + now * first", "return before", GAITS, "a past that outlives its episode"),
    Mutant("envs/gaits.py", "self._before = actions * 1.0", "self._before = actions", GAITS, "the action before is the present one"),
    Mutant("envs/gaits.py", "* before + earlier", "* before - earlier", GAITS, "a sign in the second difference"),
    Mutant("envs/gaits.py", "self._air = air * (1.0 - on)", "self._air = air", GAITS, "air time goes on on the ground"),
    Mutant("envs/gaits.py", "-(landed * before**2)", "-(landed * speed**2)", GAITS, "the speed after the impact"),
    Mutant("envs/gaits.py", "* (1.0 - 1.0 / self.steps) + gap", "+ gap", GAITS, "a sum over a gait for its mean"),
    Mutant("envs/rollout.py", "if wish in self._paid:", "if False:", GAITS, "a past that moves on whenever it is asked"),
    Mutant("envs/rollout.py", "Past(self.ages == 1,", "Past(self.ages == 0,", GAITS, "episodes that never begin"),
    Mutant("envs/rollout.py", "pasts=self._pasts", "pasts={}", GAITS, "each rollout begins without a past"),
    Mutant("rql/wrapping.py", "self._began = False", "pass", GAITS, "every step is an episode's first"),
    Mutant("planning/sampling.py", "half: np.ndarray = 0.5 *", "half: np.ndarray = 1.0 *", SAMPLING, "uniform base weighed twice"),
    Mutant("planning/sampling.py", "inner: np.ndarray = -np", "inner: np.ndarray = np", SAMPLING, "sign of the base zero"),
    Mutant("planning/scoring.py", "discount**steps * ahead", "discount ** (steps - 1) * ahead", SAMPLING, "a plan's end discounted one step too little"),
    Mutant("planning/scoring.py", "(around if closed else around[:, :1])", "around", SAMPLING, "an open loop that is closed"),
    Mutant("planning/scoring.py", "+ score.omega * beside", "- score.omega * beside", SAMPLING, "sign of log prior in a plan"),
    Mutant("planning/scoring.py", "rewards[gone] = rewards.min() -", "rewards[gone] = 0.0 *", PLANNER, "an end as a way out"),
    Mutant("planning/scoring.py", "total[failed] = -np.inf", "pass", PLANNER, "what broke down counts"),
    Mutant("planning/planner.py", "noise[:, 0] = -plans", "noise[:, 0] = 0.0", SAMPLING, "the prior's own plan does not compete"),
    Mutant("planning/planner.py", "[plans[:, 1:], np.zeros_like(plans[:, :1])]", "[plans[:, :-1], np.zeros_like(plans[:, :1])]", PLANNER, "a warm plan not moved on"),
    Mutant("planning/choosing.py", "np.argmax(payments)", "np.argmin(payments)", CHOOSING, "the worst paid weights are taken"),
    Mutant("planning/value.py", "rollout.actions) - prior.log_prob(observations, modes)", "modes) - prior.log_prob(observations, modes)", CHOOSING, "the judge asks nothing for strange actions"),
    Mutant("planning/distilling.py", "if student is None else student", "if True else student", "tests/planning/test_distilling.py", "the student's own states are not labelled"),
    Mutant("planning/live.py", "in own and (not origin or origin in own)", "in own", "tests/planning/test_live.py", "other pages may call the live page"),
    Mutant("planning/live.py", "max(value, SLIDERS[name][0])", "max(0 * value, SLIDERS[name][0])", "tests/planning/test_live.py", "a slider that does nothing"),
    Mutant("planning/pace.py", "* (MORE - FEW) /", "* MORE /", "tests/planning/test_pace.py", "more samples than there is time for"),
    Mutant("planning/distilling.py", 'student.log_std.data.copy_(prior.state_dict()["log_std"])', "pass", "tests/planning/test_distilling.py", "what is kept has a std of its own"),
    Mutant("wishes/record.py", "start - self.before, int(", "start - self.before + 1, int(", TAKEOVER, "a bad step too few"),
    Mutant("wishes/record.py", "run[-1] + 2 - length, length", "run[-1] + 1, length", TAKEOVER, "windows that are too short"),
    Mutant("wishes/takeover.py", 'pressed.count("space") % 2', '"space" in pressed', TAKEOVER, "two strokes of Space are one"),
    Mutant("wishes/learning_loop.py", "None if earlier is None else earlier.theta, chances", "None, chances", TAKEOVER, "a round forgets the wish before it"),
    Mutant("wishes/learning_loop.py", "@ one - one.mean(0)", "@ one", TAKEOVER, "where a policy began is foretold, too"),
    Mutant("wishes/pairs.py", "mode + held, mode)", "mode + away, mode)", ASK, "a clip's deviation is not held"),
    Mutant("wishes/answers.py", "-centre[:, None]", "0 * centre[:, None]", ASK, "networks that pay every step alike"),
    Mutant("wishes/answers.py", "sums[:, 0] - sums[:, 1], values", "sums[:, 1] - sums[:, 0], values", ASK, "the worse clip is liked"),
    Mutant("envs/wish_file.py", "chosen if power is None else np.abs(chosen) ** power", "np.abs(chosen) ** (power or 1)", WISH_FILE, "every feature is an absolute value"),
    Mutant("envs/wish_file.py", "if not (features or needs_no_code(theirs)):", "if False:", WISH_FILE, "code that a wish's file names"),
    Mutant("envs/addons.py", 'return called if ":" in called or is_wish_file(called) else ""', 'return called if ":" in called else ""', WISH_FILE, "a policy's file names a wish's file"),
    Mutant("objective.py", "entropy = -(objective.alpha", "entropy = (objective.alpha", OBJECTIVE, "sign of the entropy"),
    Mutant("objective.py", "prior = (objective.omega if", "prior = -(objective.omega if", OBJECTIVE, "sign of the prior"),
    Mutant("objective.py", "total = total + prior", "total = total", OBJECTIVE, "prior dropped"),
    Mutant("objective.py", "total = total + entropy", "total = total", OBJECTIVE, "entropy dropped"),
    Mutant("objective.py", 'objective.task == "addon" else basic + addon', 'objective.task == "addon" else addon', OBJECTIVE, "full reads the add-on alone"),
    Mutant("objective.py", 'Objective("addon", omega="alpha", alpha=alpha)', 'Objective("addon", alpha=alpha)', OBJECTIVE, "kl without its prior"),
    Mutant("objective.py", 'Objective("basic", alpha=alpha, bonus="alpha")', 'Objective("basic", alpha=alpha)', OBJECTIVE, "repeat without repeating"),
    Mutant("objective.py", 'return Objective("basic", bonus=alpha)', 'return Objective("basic", alpha=alpha)', OBJECTIVE, "end-entropy becomes soft"),
    Mutant("objective.py", "familiar = objective.states * states", "familiar = -objective.states * states", OBJECTIVE, "sign of the prior's states"),
    Mutant("objective.py", "total + familiar if objective.states else total", "total", OBJECTIVE, "prior's states dropped"),
    Mutant("policies/density.py", "/ (FREEDOM + self.edge)", "/ FREEDOM", STATES, "no hinge"),
    Mutant("policies/density.py", "half = 0.5 *", "half = 1.0 *", STATES, "twice the nats"),
    Mutant("policies/density.py", "(kept - mean) / len(kept)", "(kept - mean)", STATES, "covariance not a mean"),
    Mutant("policies/density.py", "one, upper=False).T", "one, upper=False)", STATES, "whitened the wrong way round"),
    Mutant("policies/density.py", "ROUNDS = 10", "ROUNDS = 1", STATES, "episodes that tumble widen the prior's states"),
    Mutant("policies/density.py", "if bool((kept.var", "if False and bool((kept.var", STATES, "what seldom changes is left out"),
    Mutant("prepare/states.py", "if team.index == 0:", "if True:", "tests/runs/test_ranks.py", "a density of every rank's own"),
    Mutant("prepare/worth.py", "for each in both)\n    if not", "for each in both[:1])\n    if not", "tests/exact/test_nat.py", "what a nat is worth without the entropy"),
    Mutant("prepare/worth.py", "if found.deterministic:", "if False:", WORTH, "the mode's nats are not its own"),
    Mutant("prepare/worth.py", "sampled.returns + value", "sampled.returns - value", WORTH, "the error of a worth forgets what nats do"),
    Mutant("prepare/worth.py", "self.value > 2 * self.error", "True", WORTH, "a worth within its error is taken"),
    Mutant("prepare/weights.py", "return weight if length", "return 1.0 if length", WORTH, "states without omega"),
    Mutant("prepare/weights.py", "omega = max(", "omega = min(", WORTH, "noise may cost more of one reward"),
    Mutant("prepare/weights.py", "if worths.basic in worths.known", "if worths.basic", WORTH, "states by a chance"),
    Mutant("prepare/worth.py", "or not likely or", "or", WORTH, "a worth is sought where nothing speaks for one"),
    Mutant("prepare/worth.py", "+ episodes * len(rounds)  #", "  #", WORTH, "the same episodes count again and again"),
    Mutant("exact/solve.py", "task + objective.states * states", "task", "tests/exact/test_states_term.py", "the optimum without the states"),
    Mutant("learning/ppo.py", "gamma * (~terminated)", "gamma * (~ended)", "tests/learning/test_advantages.py", "time limits treated as termination"),
    Mutant("learning/ppo.py", "decays = gamma * lam * (~ended)", "decays = gamma * lam * (~terminated)", "tests/learning/test_advantages.py", "advantages leak across time limits"),
    Mutant("learning/ppo.py", "decays = gamma * lam *", "decays = gamma *", "tests/learning/test_advantages.py", "λ dropped"),
    Mutant("learning/ppo.py", "discounts * next_values - values", "discounts * next_values + values", "tests/learning/test_advantages.py", "sign of the baseline"),
    Mutant("learning/ppo.py", "rewards + discounts * next_values", "rewards + next_values", "tests/learning/test_advantages.py", "discount dropped"),
    Mutant("learning/ppo.py", "reversed(range(len(errors)))", "range(len(errors))", "tests/learning/test_advantages.py", "advantages run forwards"),
    Mutant("learning/ppo.py", "policy = -torch.minimum(", "policy = torch.minimum(", PPO, "sign of the surrogate"),
    Mutant("learning/ppo.py", "-torch.minimum(ratios", "-torch.maximum(ratios", PPO, "maximum for minimum"),
    Mutant("learning/ppo.py", "loss - bonus * distribution", "loss + bonus * distribution", PPO, "sign of the bonus"),
    Mutant("learning/ppo.py", "settings.value_coefficient * result.value", "result.value", PPO, "weight of the critic's loss"),
    Mutant("learning/ppo.py", 'settings.surrogate == "vanilla"', "False", PPO, "vanilla gradient clipped"),
    Mutant("learning/ppo.py", "1.0 - settings.clip, 1.0 + settings.clip", "1.0 - settings.clip, 2.0 + settings.clip", PPO, "upper clip"),
    Mutant("learning/ppo.py", "value = 0.5 *", "value = 1.0 *", PPO, "scale of the critic's loss"),
    Mutant("learning/ppo.py", "if norm > max_norm:", "if norm < max_norm:", PPO, "short gradients shortened"),
    Mutant("learning/ppo.py", "log_probs - batch.log_probs", "log_probs + batch.log_probs", PPO, "ratio upside down"),
    Mutant("learning/ppo.py", "1.0 - BETA_VAR**steps", "1.0 - BETA_MEAN**steps", PPO, "Adam's bias correction"),
    Mutant("learning/ppo.py", "parts[name], self._steps[name])", 'parts[name], self._steps["critic"])', PPO, "an actor that joins later leaps"),
    Mutant("learning/ppo.py", "self.gradient[: self.actor_size].zero_()", "self.gradient[self.actor_size :].zero_()", PPO, "the critic frozen for the actor"),
    Mutant("learning/ppo.py", "kl > 2.0 * desired", "kl < 2.0 * desired", PPO, "adaptive learning rate"),
    Mutant("learning/ppo.py", "ratios - 1.0 - log_ratios", "ratios - 1.0 + log_ratios", PPO, "estimate of the KL"),
    Mutant("learning/terms.py", "squares / count - means.square()", "squares / count", WORKER, "advantages scaled by their root mean square"),
    Mutant("learning/terms.py", "1.0 - gain / max(target", "gain / max(target", WORKER, "what the critic explains upside down"),
    Mutant("learning/worker.py", "moves and explained > LOST", "moves", WORKER, "weights move where the critic cannot follow"),
    Mutant("learning/worker.py", "alone and (enough or", "alone or (enough and", WORKER, "the actor does not wait for its critic"),
    Mutant("learning/ppo.py", 'schedule == "adaptive" and fit_actor', 'schedule == "adaptive"', PPO, "a step that grows while nothing moves"),
    Mutant("runs/result.py", "self.mean - other.mean > ", "self.mean - other.mean < ", "tests/learning/test_doubts.py", "a gain taken for a loss"),
    Mutant("learning/worker.py", "next_values = values[1:].clone()", "next_values = values[:-1].clone()", WORKER, "next values not next"),
    Mutant("learning/worker.py", "next_values[rollout.cut[:, 0], rollout.cut[:, 1]] = learner.values(ends)", "pass", WORKER, "values after time limits not replaced"),
    Mutant("learning/worker.py", "self.scorer(self.bare(observations), actions", "self.scorer(2 * self.bare(observations), actions", WORKER, "prior sees other observations"),
    Mutant("learning/terms.py", "*both, terminated, ended, gamma", "*both, ended, ended, gamma", WORKER, "masks of the loop swapped"),
    Mutant("learning/terms.py", "gains.unsqueeze(-1) + values", "gains.unsqueeze(-1).expand_as(values)", WORKER, "critic's targets without values"),
    Mutant("learning/ppo.py", "count.clamp(max=MEMORY * added[0])", "count", WORKER, "returns of long ago never fade"),
    Mutant("learning/ppo.py", "(mean - self.mean)", "(self.mean - mean)", WORKER, "the critic leaps when its unit moves"),
    Mutant("policies/modulated.py", ".sub_(self.film[:, scale]", ".add_(self.film[:, scale]", WORKER, "the dial's critic leaps when its unit moves"),
    Mutant("learning/worker.py", "return self.prior is None and", "return", WORKER, "the prior's normalizer not frozen"),
    Mutant("learning/worker.py", "raw[..., policy.observation_size :]", "raw[..., : self.critic_size]", PRIVILEGED, "the critic is shown the policy's part"),
    Mutant("learning/worker.py", "self.critic_normalizer} if self.critic_size else {}", "self.critic_normalizer} if False else {}", PRIVILEGED, "the critic's statistics not in the checkpoint"),
    Mutant("learning/worker.py", "self.critic_normalizer.update(self.team.sum(sums(raw)))", "self.critic_normalizer.update(sums(raw))", PRIVILEGED, "the critic's statistics of each rank's own"),
    Mutant("learning/multipliers.py", "exp(STEERING * off", "exp(-STEERING * off", WORKER, "KL budget steered the wrong way"),
    Mutant("learning/multipliers.py", "[limit.sign * weight.value *", "[-limit.sign * weight.value *", LIMITS, "a limit that is rewarded for being broken"),
    Mutant("learning/multipliers.py", "np.where(rollout.terminated, lacking, 0.0)", "0.0", LIMITS, "an early end that keeps its return"),
    Mutant("learning/multipliers.py", "probed.basic.mean(0) - expected", "probed.basic.mean(0) + expected", LIMITS, "a share of the old return without the old return"),
    Mutant("learning/segments.py", 'worker.multipliers.restore(header, state.get("prior_earns"))', "pass", LIMITS, "multipliers that a resumed run forgets"),
    Mutant("envs/limits.py", "one.broken_by(other.bound) > 0", "False", LIMITS, "limits that exclude each other"),
    Mutant("learning/multipliers.py", "objective.alpha if omega_alone else", "", "tests/learning/test_steering.py", "a log-prior budget moves alpha too"),
    Mutant("learning/worker.py", "nats = own - log_prior.double()", "nats = log_prior.double() - own", "tests/learning/test_steering.py", "likelier actions spend the log-prior budget"),
    Mutant("learning/multipliers.py", "raised(objective.omega, now, now - before)", "raised(objective.omega, now, before - now)", WORKER, "a drift on its way pushed along"),
    Mutant("learning/segments.py", "return not self.moves and not", "return not", WORKER, "returns by other weights compared"),
    Mutant("learning/segments.py", " and longer >= 0.0", "", "tests/learning/test_candidate.py", "an early fall is handed out"),
    Mutant("learning/segments.py", "2.0 * gain.error", "0.0 * gain.error", "tests/learning/test_candidate.py", "a lucky policy is handed out"),
    Mutant("learning/segments.py", "derived_seed(settings.seed, self.segment, 1 + index)", "derived_seed(settings.seed, 0, 1 + index)", WORKER, "segments share random numbers"),
    Mutant("learning/terms.py", "return (gains * self.weights()).sum(-1)", "return gains.sum(-1)", DIAL, "heads added without their weights"),
    Mutant("learning/terms.py", "dial.name: dial.value(place) for dial, place", "dial.name: dial.value(place * 0) for dial, place", DIAL, "one omega for the whole dial"),
    Mutant("learning/terms.py", "total = total + values[name] * self.tasks[-1]", "total = total + self.tasks[-1]", DIAL, "a dialed add-on paid without its weight"),
    Mutant("learning/terms.py", "[*fixed, *(values[name] for name in self.wishes), *terms]", "[*fixed, *(values[name] for name in [*self.wishes][::-1]), *terms]", DIAL, "the heads of two add-ons weighed the wrong way round"),
    Mutant("learning/terms.py", "inputs[:, index - len(self.dials)] = place", "inputs[:, -1] = place", DIAL, "the ends of the last dial taken for those of each"),
    Mutant("learning/terms.py", "cells = side ** torch.arange(len(self.dials))", "cells = torch.ones(len(self.dials)).long()", DIAL, "strata of two dials mixed up"),
    Mutant("policies/modulated.py", "if 0 < sum(each) <= DEGREE]", "if 0 < sum(each) <= DEGREE and max(each) == sum(each)]", DIAL, "no products of two positions"),
    Mutant("objective.py", "-(objective.alpha if alpha is None else alpha) * log_policy", "-objective.alpha * log_policy", DIAL, "a dial over alpha turns nothing"),
    Mutant("learning/terms.py", "- means[stratum, 0]", "", DIAL, "advantages of a stratum without their mean"),
    Mutant("learning/worker.py", "observations[..., : self.learner.policy.spec.observation_size]", "observations[..., -self.learner.policy.spec.observation_size :]", DIAL, "the prior sees the dial's position"),
    Mutant("envs/dialed.py", "np.where(ended[:, None], self._drawn(), self._places)", "self._drawn()", DIAL, "the dial turns within an episode"),
    Mutant("envs/dialed.py", "self._behind(step.final), step.terminated", "self._behind(step.final) * 1.0, step.truncated", DIAL, "the dial stays where an episode ended early"),
    Mutant("priors/dials.py", "(1 - t) * narrow / precision, t *", "t * narrow / precision, (1 - t) *", "tests/priors/test_dials.py", "the mixture turns the wrong way"),
    Mutant("priors/dials.py", "precision**-0.5", "precision**-1", "tests/priors/test_dials.py", "the mixture's std is a variance"),
    Mutant("many/bets.py", "np.concatenate([np.zeros_like(running[..., :1]), running[..., :-1]], axis=-1)", "running", "tests/many/test_comparing.py", "a stake that knows the number it is on"),
    Mutant("many/bets.py", "np.maximum.accumulate(losses, axis=-1)", "losses", "tests/many/test_comparing.py", "a bound that forgets the largest loss"),
    Mutant("many/comparing.py", "sign, losses, allowed = -1.0", "sign, losses, allowed = 1.0", "tests/many/test_comparing.py", "more early ends are better"),
    Mutant("many/comparing.py", "shown(gain + allowed, losses", "shown(gain, losses", "tests/many/test_comparing.py", "not worse without a margin"),
    Mutant("many/comparing.py", "return min((row.verdict", "return max((row.verdict", "tests/many/test_comparing.py", "the best verdict of several decides"),
    Mutant("many/comparing.py", "seed + done, backend", "seed, backend", "tests/many/test_comparing.py", "every round from the same starts"),
    Mutant("report/verdict.py", "math.hypot(*errors)", "after.error", "tests/report/test_verdict.py", "a difference with the error of one side"),
    Mutant("many/varying.py", "error / STEPS ** len(axes)", "error", VARYING, "each place with the error of all"),
    Mutant("many/varying.py", "return min(self.places", "return max(self.places", VARYING, "the best place taken for the worst"),
    Mutant("report/verdict.py", "< ERROR / self.told", "< ERROR", "tests/report/test_verdict.py", "two chances to be wrong, each of 5 %"),
    Mutant("report/verdict.py", "(index - 1) / index", "index / (index + 1)", "tests/report/test_verdict.py", "Student's t with another series"),
    Mutant("priors/finding.py", "if hashlib.sha256(content).hexdigest() != sha256", "if False", "tests/readers/test_shelf.py", "another file taken from the shelf"),
    Mutant("policies/normalizer.py", "inputs: np.ndarray = observations - shift", "inputs: np.ndarray = observations + shift", POLICY, "acting: shift of the normalizer"),
    Mutant("policies/normalizer.py", "np.minimum(inputs, bound", "np.minimum(inputs, 1.1 * bound", POLICY, "acting: clip of the normalizer"),
    Mutant("policies/families.py", "mean + std * next(noise)", "mean", POLICY, "acting without noise"),
    Mutant("policies/families.py", "mean + std * next(noise)", "mean + next(noise)", POLICY, "acting without std"),
    Mutant("policies/network.py", "outputs += last_bias", "outputs += 0.0", "tests/policies/test_network.py", "acting without the last bias"),
    Mutant("policies/network.py", "x * (0.5 * np.tanh(0.5 * x) + 0.5)", "x * (0.5 * np.tanh(x) + 0.5)", "tests/policies/test_network.py", "swish while acting"),
    Mutant("policies/network.py", "np.sqrt(variance + self.epsilon)", "np.sqrt(variance)", "tests/policies/test_network.py", "epsilon of LayerNorm while acting"),
    Mutant("policies/families.py", "0.5 * torch.log(rest.square()", "torch.log(rest.square()", POLICY, "std of gSDE is a variance"),
    Mutant("policies/families.py", "low + 0.5 * (high - low)", "low + (high - low)", "tests/readers/test_formats_checkpoints.py", "bounds of a log-std through tanh"),
    Mutant("policies/policy.py", "return actions.clip(low, high)", "return actions", POLICY, "actions cut to their bounds"),
    Mutant("readers/pickles.py", "if self.left < 0:", "if False:", "tests/readers/test_formats_limits.py", "a short pickle fills the memory"),
    Mutant("readers/pickles.py", "> MOST:", "> 10 * MOST:", "tests/readers/test_formats_limits.py", "a short pickle makes many small things"),
    Mutant("readers/pickles.py", "isinstance(key, tuple | frozenset)", "False", "tests/readers/test_formats_limits.py", "a short pickle hashes without end"),
    Mutant("readers/copying.py", "if state[name].shape != wanted.shape:", "if False:", "tests/readers/test_copied.py", "a copied part that does not fit"),
    Mutant("envs/trust.py", "wishes.imported(name) not in", 'wishes.imported(name.partition("?")[0]) not in', "tests/envs/test_trust.py", "code that looks like an option"),
    Mutant("policies/file.py", "if min(widths) < 1:", "if False:", "tests/cli/test_doors_files.py", "a layer of no numbers"),
    Mutant("readers/copying.py", "normalizer.var - 1e-8", "normalizer.var", "tests/readers/test_copied.py", "epsilon of a copied normalizer"),
    Mutant("readers/copying.py", "std.raw.bias - np.float32(", "std.raw.bias + np.float32(", "tests/readers/test_copied.py", "bias of a copied std"),
    Mutant("readers/operations.py", 'Step("affine", -1.0, row)', 'Step("affine", 1.0, row)', "tests/readers/test_formats_graphs.py", "a constant minus the observations"),
    Mutant("readers/onnx_graphs.py", "each = -(-rows // count)", "each = rows // count", "tests/readers/test_formats_graphs.py", "a layer that is split unevenly"),
    Mutant("readers/onnx_graphs.py", 'np.float64(of.get("alpha", 1.0))', "1.0", "tests/readers/test_formats_graphs.py", "Gemm without its factor"),
    Mutant("readers/mapped.py", "map(float, shift - scale)", "map(float, -scale)", "tests/readers/test_formats_checkpoints.py", "bounds of a squashed action that is shifted"),
    Mutant("readers/mapped.py", "own <= {*layout.modules}", "True", "tests/readers/test_formats_layouts.py", "a module that is left out of a copy"),
    Mutant("envs/step.py", "parts = [observations[key] for key in keys] if keys", "parts = [observations[key] for key in sorted(keys)] if keys", "tests/readers/test_copied.py", "order of the parts of an observation"),
    Mutant("policies/distributions.py", "- log_tanh_slope(actions).sum(-1)", "", "tests/policies/test_distributions.py", "Jacobian of tanh dropped"),
    Mutant("policies/distributions.py", "distance - 1.0", "distance", "tests/policies/test_distributions.py", "KL of Gaussians"),
    Mutant("envs/gymnasium.py", "final = current = flat(", "current = flat(", "tests/envs/test_envs.py", "true last observations"),
    Mutant("envs/gymnasium.py", "current, rewards.astype(np.float64), terminated, truncated & ~terminated", "current, rewards.astype(np.float64), terminated, truncated", "tests/envs/test_envs.py", "terminated and truncated at once"),
    Mutant("envs/step.py", "space).astype(own.dtype)", "space).astype(own.dtype).clip(-1, 1)", "tests/envs/test_envs.py", "actions clipped"),
    Mutant("envs/rollout.py", "np.argwhere(truncated), torch", "np.argwhere(np.stack([step.terminated for step in steps])), torch", "tests/envs/test_rollout.py", "terminations kept as time limits"),
    Mutant("envs/rollout.py", "[steps[t].final[n] for t, n in cut]", "[steps[t].observations[n] for t, n in cut]", "tests/envs/test_rollout.py", "time limits valued at the next episode's start"),
    Mutant("envs/rollout.py", "truncated=step.truncated | due", "terminated=step.terminated | due", "tests/envs/test_rollout.py", "episodes cut out of step count as terminated"),
    Mutant("envs/rollout.py", "ended = step.terminated | step.truncated\n        if ended.any():", "ended = step.terminated | step.truncated | (self._lengths == self._cuts)\n        if ended.any():", "tests/envs/test_rollout.py", "episodes cut out of step enter the statistics"),
    Mutant("envs/rollout.py", "np.arange(first + 1, first + count + 1)", "np.arange(1, count + 1)", "tests/envs/test_rollout.py", "each rank cuts at the same times"),
    Mutant("envs/rollout.py", "np.stack([step.final for step in steps])", "np.stack([step.observations for step in steps])", "tests/envs/test_rollout.py", "add-ons see the next episode's start"),
    Mutant("prepare/flows.py", "wanted[rows] - noise)", "wanted[rows])", "tests/prepare/test_flows.py", "velocity does not leave the noise"),
    Mutant("prepare/flows.py", "step / EULER", "1.0 - step / EULER", "tests/prepare/test_flows.py", "time of the flow runs backwards"),
    Mutant("prepare/flows.py", ", last[:, None])", ", count + 0 * last[:, None] - 1)", "tests/prepare/test_flows.py", "a chunk goes beyond its episode"),
    Mutant("policies/normalizer.py", "* self.scale).clamp_", "/ self.scale).clamp_", "tests/policies/test_policy.py", "normalizer multiplies"),
    Mutant("policies/normalizer.py", "delta.square() * count * new_count / total", "delta.square() * 0.0", "tests/policies/test_policy.py", "variance between batches dropped"),
    Mutant("many/tradeoff.py", "-np.maximum(least, costs)", "-costs", "tests/many/test_sweep.py", "a point that lost everything flattens the others"),
    Mutant("envs/evaluation.py", "ended & (self._quota > 0)", "ended", "tests/envs/test_evaluation.py", "short episodes counted more often"),
    Mutant("envs/evaluation.py", "self.basic + self.addon", "self.addon", "tests/envs/test_evaluation.py", "total without the basic reward"),
    Mutant("llm/losses.py", "reward - objective.omega * log_prior", "reward + objective.omega * log_prior", LLM["losses"], "sign of the prior in the implicit reward"),
    Mutant("llm/losses.py", "-functional.logsigmoid(chosen", "functional.logsigmoid(chosen", LLM["losses"], "sign of the preference loss"),
    Mutant("llm/losses.py", "log_prior) + offset", "log_prior) - offset", LLM["losses"], "sign of the offset"),
    Mutant("llm/losses.py", "position == last", "position <= last", LLM["losses"], "add-on paid at more than the last token"),
    Mutant("llm/losses.py", "+= gamma * returns[:, t + 1]", "+= returns[:, t + 1]", LLM["losses"], "discount of the return dropped"),
    Mutant("llm/losses.py", "(own.sum(1, keepdim=True) - own) / others", "own.sum(1, keepdim=True) / others", LLM["losses"], "a response in its own baseline"),
    Mutant("llm/dpo.py", "return ratio * chosen, ratio * rejected", "return chosen, rejected", LLM["dpo"], "omega has no effect"),
    Mutant("llm/cross_entropy.py", "self.args.offset_rate * slope", "-self.args.offset_rate * slope", LLM["cross_entropy"], "the offset moves the wrong way"),
    Mutant("llm/grpo.py", "self.beta = 0.0  # ... and", "self.beta = 1.0  # ... and", LLM["grpo"], "TRL's KL in the loss as well"),
    Mutant("llm/grpo.py", 'waiting["row"].argsort()', 'torch.arange(len(waiting["row"]))', LLM["grpo"], "groups mixed by TRL's shuffle"),
    Mutant("llm/rloo.py", "objective.omega - objective.alpha]", "objective.omega]", LLM["grpo"], "the recipe counts the prior twice"),
    Mutant("llm/cross_entropy.py", "if not self.accelerator.sync_gradients:", "if False:", LLM["doors"], "the offset moves at every micro-batch"),
    Mutant("llm/models.py", "[tokenizer.eos_token_id, *listed]", "[tokenizer.eos_token_id]", LLM["grpo"], "responses run on behind their end"),
    Mutant("llm/grpo.py", "values.view(-1, self._group)[:, priors:]", "values.view(-1, self._group)", LLM["grpo"], "the log counts what the prior wrote"),
    Mutant("llm/grpo.py", "values = values.where(self._judged, torch.nan)", "pass", LLM["grpo"], "a response that nobody judged counts as certain"),
    Mutant("llm/models.py", 'method == "QAdapterTrainer"', "False", LLM["q_adapter"], "a Q-adapter is taken for a policy"),
    Mutant("llm/identity.py", "parameter.float() if parameter.is_floating_point() else parameter", "parameter", LLM["doors"], "a checksum of how weights were loaded"),
    Mutant("llm/identity.py", "if not same:", "if False:", LLM["doors"], "a changed model's folder is its prior"),
    Mutant("llm/identity.py", "if before != now:", "if False:", LLM["doors"], "a checkpoint resumed with another objective"),
    Mutant("llm/mixing.py", "share = (other - target.omega)", "share = (target.omega - one)", LLM["mixing"], "the dial turns the wrong way"),
    Mutant("llm/mixing.py", "share * anchor.alpha / target.alpha", "share", LLM["mixing"], "alpha has no part in the dial"),
    Mutant("llm/mixing.py", "or not torch.equal(self.seen.to(ids.device), ids[:, :-1])", "", LLM["q_adapter"], "a cache of beams that changed places"),
    Mutant("llm/budget.py", "newton = alpha * (wanted -", "newton = -alpha * (wanted -", LLM["budget"], "omega moves away from the budget"),
    Mutant("llm/before.py", "(objective.alpha - objective.omega) * log_ratio", "objective.alpha * log_ratio", LLM["before"], "margins without the prior"),
    Mutant("llm/grpo.py", "policy, self.model_wrapped = self.model_wrapped, self.ref_model", "policy = self.model_wrapped", LLM["grpo"], "the prior's share is the policy's"),
    Mutant("llm/q_adapter.py", "logits.float() - prior_logits", "logits.float()", LLM["q_adapter"], "Q_R is the adapter's whole logits"),
    Mutant("rql/dqn.py", "q = q + self.objective.omega", "q = q - self.objective.omega", DQN, "sign of the prior beside Q_R"),
    Mutant("rql/dqn.py", "return q / self.objective.alpha", "return q", DQN, "temperature dropped"),
    Mutant("rql/dqn.py", "next_v = self.objective.alpha * logits", "next_v = logits", DQN, "soft maximum in the wrong unit"),
    Mutant("rql/dqn.py", "(1 - batch.dones) * self.gamma", "self.gamma", DQN, "value after a terminal step"),
    Mutant("rql/dqn.py", "return super()._sample_action(0,", "return super()._sample_action(learning_starts,", DQN, "random actions at first"),
    Mutant("rql/dqn.py", "distribution.mode() if deterministic else distribution.sample()", "distribution.mode()", DQN, "a greedy policy"),
    Mutant("rql/dqn.py", "omega / alpha)", "omega)", DQN, "the file's network without its temperature"),
    Mutant("rql/wrapping.py", "prior = copy.deepcopy(prior)", "pass", DQN, "the prior is shared, not copied"),
    Mutant("rql/wrapping.py", "requires_grad_(False)", "requires_grad_(True)", SAC, "the prior takes gradients"),
    Mutant("rql/wrapping.py", "task_reward(self.objective, basic,", "task_reward(self.objective, 2 * basic,", DQN, "scale of the basic reward"),
    Mutant("rql/sac.py", "min(dim=1).values", "max(dim=1).values", SAC, "the larger critic"),
    Mutant("rql/sac.py", "return -self.soft_value(self.critic,", "return self.soft_value(self.critic,", SAC, "sign of the actor's loss"),
    Mutant("rql/sac.py", "self.log_prior(observations, actions) if", "self.log_prior(observations, actions.detach()) if", SAC, "no gradient through the prior's action"),
    Mutant("rql/sac.py", "self.log_prior(observations, actions) if", "self.log_prior(observations, torch.tanh(actions)) if", SAC, "the prior scores the squashed action"),
    Mutant("rql/sac.py", "(1 - batch.dones) * self.gamma", "self.gamma", SAC, "value after a terminal step"),
    Mutant("rql/sac.py", " + half.log().sum()", "", SAC, "a prior in the environment's units"),
    Mutant("rql/sac.py", "if actions.requires_grad and not found.requires_grad:", "if False:", SAC, "a prior without a gradient"),
    Mutant("hosts/method.py", "before, samples, variance)", "before)", "tests/hosts/test_sb3.py", "a budget without its noise"),
    Mutant("hosts/measuring.py", "counts & ~finished, row", "~finished, row", "tests/hosts/test_measuring.py", "an episode counts that had begun before"),
    Mutant("hosts/rsl_rl_priors.py", "part * keep", "part", "tests/hosts/test_rsl_rl.py", "a prior that remembers the episode before"),
    Mutant("hosts/method.py", "outputs if torch.is_grad_enabled()", "outputs if False", "tests/hosts/test_method.py", "a critic that learns in another unit"),
    Mutant("hosts/method.py", "returns.copy_(self.scale.apply(returns))", "pass", "tests/hosts/test_method.py", "returns that keep their unit"),
    Mutant("hosts/method.py", "steps - last, before + steps)", "steps - last, steps)", "tests/hosts/test_method.py", "the age of an episode that began in the rollout before"),
    Mutant("prepare/session.py", "for name in unset}", "for name in unset if name != 'alpha'}", "tests/prepare/test_session.py", "a budget begins elsewhere when resumed"),
    Mutant("envs/rollout.py", "| (self._lengths == self._longest)", "", "tests/envs/test_evaluation.py", "an episode that is cut goes on"),
    Mutant("many/sweep.py", 'alpha = kept["alpha"] if alpha is None else alpha', "pass", "tests/many/test_sweep.py", "a resumed sweep finds another alpha"),
    Mutant("rql/sac.py", "return frozen(self.prior).requires_grad_(True)", "return self.prior.requires_grad_(True)", SAC, "the actor is the prior itself"),
    Mutant("envs/rollout.py", "            self._check(seen[t], t)\n", "", "tests/envs/test_rollout.py", "observations within a rollout not looked at"),
    Mutant("envs/rollout.py", "        self._check(seen[-1], self.n_steps)\n", "", "tests/envs/test_rollout.py", "a rollout's last observations not looked at"),
    Mutant("envs/evaluation.py", "np.average((self.values - self.mean) ** 2, weights=self.weights)", "np.average((self.values - self.mean) ** 2)", "tests/envs/test_evaluation.py", "a std without the episodes' lengths"),
    Mutant("prepare/states.py", "if prior.observation_size > MOST_NUMBERS:", "if False:", STATES, "states of any size are learned"),
    Mutant("prepare/weights.py", " and numbers <= MOST_NUMBERS", "", WORTH, "a price on states of any size"),
    Mutant("runs/folder.py", "if done >= wanted:", "if True:", "tests/cli/test_doors_output.py", "a stopped run taken for a finished one"),
    Mutant("prepare/diagnosis.py", "clips=policy.spec.clips or policy.family.squashes", "clips=False", "tests/prepare/test_diagnosis.py", "the untrained policy beyond the bounds"),
    Mutant("prepare/diagnosis.py", "run(ENVS * times) if times > 1", "run(ENVS) if times > 1", "tests/prepare/test_diagnosis.py", "short episodes are hardly driven"),
    Mutant("prepare/cloning.py", "= samples.actions.mean(0)", "= 0.0", "tests/prepare/test_imitation.py", "a fit begins far from the actions"),
    Mutant("priors/finding.py", "if out.is_file() and path.is_file() and out.samefile(path):", "if False:", DOORS, "what is made of a policy written over it"),
    Mutant("priors/finding.py", " and path.parent != PRIORS and path not in DOWNLOADED", "", DOORS, "what is made of a shipped policy put into the package"),
    Mutant("priors/kinds.py", "        if not bool(torch.isfinite(log_probs).all()):", "        if False:", "tests/priors/test_priors.py", "a log_prob that is not finite"),
    Mutant("report/publish.py", 'if "method" in asked:', "if False:", "tests/report/test_hub.py", "a card of Residual Q-Learning without its command"),
    Mutant("report/publish.py", '(cell.replace("|", "\\\\|") for cell in cells)', "cells", "tests/report/test_hub.py", "a name that breaks its table"),
    Mutant("exact/solve.py", "for _ in range(_backups(mdp.discount)):", "for _ in range(100):", "tests/exact/test_solve.py", "an optimum that is not there yet"),
    Mutant("many/pool.py", "            at_work.kill()", "            pass", POOL, "a job that does not stop is not killed"),
    Mutant("runs/machine.py", "_handled(ending_signals(), signal.default", "_handled(ending_signals()[1:], signal.default", f"tests/runs/test_machine.py {POOL}", "SIGINT stays ignored while a run starts"),
    Mutant("runs/machine.py", "if event.is_set():", "if False:", "tests/runs/test_machine.py", "a second Ctrl-C does nothing"),
    Mutant("cli/main.py", 'values.get("finished") is False', "False", "tests/cli/test_nets.py", "a stopped run ends with 0"),
    Mutant("runs/display.py", "max(done - self._start, 1)", "max(done, 1)", "tests/runs/test_display.py", "the time left of a resumed run counts what was done before"),
    Mutant("many/sweep.py", "policy = prior if math.isinf(point.omega) else read_policy(point.policy).policy", "policy = prior", "tests/many/test_sweep.py", "the prior evaluated in the place of every point"),
    Mutant("policies/storage.py", '        with open(beside, "wb") as file:', '        path.write_bytes(content)\n        with open(beside, "wb") as file:', "tests/policies/test_checkpoint.py", "a file written in its place"),
    Mutant("runs/folder.py", "write_bytes(self.metrics, b", "self.metrics.write_bytes(b", "tests/policies/test_checkpoint.py", "metrics written in their place"),
    Mutant("envs/envpool.py", "truncated & ~terminated", "truncated", "tests/envs/test_envs.py", "EnvPool: terminated and truncated at once"),
    Mutant("policies/export.py", ".clamp(dial.low, dial.high)", "", CARRYING, "dials of an exported graph off their range"),
    Mutant("policies/export.py", "torch.where(torch.isnan(values), dial.if_nan, values)", "values", CARRYING, "NaN as an exported dial"),
    Mutant("policies/carrying.py", 'told["graph"] == graph', "True", CARRYING, "a changed graph taken for the exported one"),
    Mutant("cli/contract.py", "model.joint(model.actuator_trnid[index, 0])", "model.joint(index)", CARRYING, "motors named in the order of joints"),
    Mutant("policies/export.py", "names, batch = list(inspect.signature(module.forward).parameters)", "names, batch = list(inspect.signature(module.forward).parameters)[::-1]", "tests/policies/test_several_policy.py", "an exported dial's inputs swap names"),
    Mutant("policies/export.py", "zip(self.dials, dials.unbind(-1), strict=True)]\n        inputs", "zip(self.dials, dials.flip(-1).unbind(-1), strict=True)]\n        inputs", "tests/policies/test_several_policy.py", "an exported policy's dials swap places"),
    Mutant("policies/export.py", "torch.log(values / dial.low) / math.log(dial.high / dial.low)", "(values - dial.low) / (dial.high - dial.low)", "tests/policies/test_several_policy.py", "an exported dial without its logarithm"),
    Mutant("prepare/worth.py", "nats < LEAST", "nats < -1.0", WORTH, "a worth without nats"),
    Mutant("prepare/worth.py", "each.var(ddof=1) / len(each)", "each.var(ddof=1)", WORTH, "the error of a worth is that of one episode"),
    Mutant("prepare/worth.py", "seed=seed, backend=backend, longest=LONGEST", "seed=seed, backend=backend", WORTH, "a worth from episodes without an end"),
    Mutant("prepare/worth.py", "if not addon_alone:", "if True:", WORTH, "the worth in an add-on is that in the sum"),
    Mutant("prepare/worth.py", "or found.steps >= steps", "", WORTH, "a worth is sought without end"),
    Mutant("prepare/worth.py", "worth.value + 2 * worth.error for", "worth.value for", WORTH, "what a nat is worth at most, without its error"),
    Mutant("prepare/worth.py", "[sampled.lengths for _, sampled in rounds]", "[by_mean.lengths for by_mean, _ in rounds]", WORTH, "how long the mean action's episodes are"),
    Mutant("prepare/weights.py", "states = worths.basic.value if", "states = max(worth.value for worth in worths.known) if", WORTH, "states priced by the add-on"),
    Mutant("policies/density.py", "1.0 - QUANTILE)", "QUANTILE)", STATES, "three quarters of the prior's own states cost something"),
    Mutant("policies/density.py", ".clamp_(0.0, MOST)", ".clamp_(0.0)", STATES, "a state that costs without a limit"),
    Mutant("prepare/states.py", "ages <= SKIPPED", "ages < 0", WORKER, "how an episode begins has a price"),
    Mutant("prepare/states.py", "rollout.ages.T > SKIPPED", "rollout.ages.T > 0", STATES, "how an episode begins is learned"),
    Mutant("ranges.py", "2.0 * math.log(value / self.low) / math.log(self.high / self.low) - 1.0", "2.0 * (value - self.low) / (self.high - self.low) - 1.0", DIAL, "a logarithmic dial without its logarithm"),
    Mutant("ranges.py", "self.low + (self.high - self.low) * ((place + 1.0) / 2.0)", "self.low + (self.high - self.low) * place", DIAL, "a linear dial begins in its middle"),
    Mutant("priors/fitting.py", "- 0.5 * (self.spread", "+ 0.5 * (self.spread", "tests/prepare/test_cloning.py tests/prepare/test_imitation.py", "the spread of actions makes them likelier"),
    Mutant("priors/fitting.py", "likelihood > highest:", "likelihood < highest:", "tests/prepare/test_cloning.py tests/prepare/test_imitation.py", "the worst epoch's numbers are kept"),
    Mutant("priors/fitting.py", ".square().mean(0).sqrt()", ".square().mean(0)", "tests/prepare/test_imitation.py", "the fitted std is a variance"),
    Mutant("readers/vecnormalize.py", "np.sqrt(var + epsilon)", "np.sqrt(var)", "tests/readers/test_formats_sb3.py", "VecNormalize without its epsilon"),
    Mutant("exact/solve.py", "(policy[t] * (total[t] + mdp.discount *", "(policy[t] * (total[t] +", "tests/exact/test_value.py", "a finite value without its discount"),
    Mutant("exact/estimators.py", "q - objective.alpha * log_policy - v[..., None]", "q - v[..., None]", "tests/exact/test_estimators.py", "an estimator without the entropy"),
    Mutant("exact/linear_quadratic.py", "soft_maximum = alpha / 2 *", "soft_maximum = alpha *", "tests/exact/test_linear_quadratic.py", "twice the soft maximum"),
    Mutant("exact/linear_quadratic.py", "- omega / 2 * torch.logdet", "+ omega / 2 * torch.logdet", "tests/exact/test_linear_quadratic.py", "sign of the prior's normalization"),
    Mutant("report/charts.py", "count / counts.max()", "count / counts.sum()", "tests/report/test_charts.py", "bars that leave most of a chart empty"),
    Mutant("rql/tasks.py", "10.0 * abs(observation[2]) / 0.2095", "10.0 * observation[2] / 0.2095", "tests/rql/test_tasks.py", "a pole that leans to the left is upright"),
    Mutant("rql/tasks.py", "np.minimum(one, other), np.maximum(one, other)", "one, other", "tests/rql/test_tasks.py", "a line is met from one side alone"),
    Mutant("prepare/defaults.py", "0.01 * step", "0.01", "tests/runs/test_settings.py", "a small batch moves the policy as far"),
    Mutant("prepare/defaults.py", "max(steps, UPDATES) / UPDATES", "steps", "tests/runs/test_settings.py", "few steps have few updates"),
    Mutant("prepare/states.py", "max(FEWEST, SHARE * steps)", "SHARE * steps", STATES, "a short run knows hardly a state"),
    Mutant("prepare/spending.py", "(segments + 1)", "segments", "tests/prepare/test_spending.py", "the first evaluation is not counted"),
    Mutant("prepare/spending.py", "states.EACH * states.SKIPPED", "states.EACH", "tests/prepare/test_spending.py", "how episodes begin is not counted"),
    Mutant("prepare/defaults.py", "3e-4 * math.sqrt(64 / widest)", "3e-4 * math.sqrt(widest / 64)", "tests/runs/test_settings.py", "a wide network takes larger steps"),
    Mutant("envs/noise.py", "counts.append(~ended)", "counts.append(~ended | True)", GENERATIVE, "steps behind an end are paid"),
    Mutant("envs/noise.py", "= self.envs.renew(early, self._current)", "= self._current", GENERATIVE, "an episode begins in the middle"),
    Mutant("envs/rollout.py", "return total / counts.sum(1) if mean", "return total / counts.shape[1] if mean", GENERATIVE, "a mean over steps that were not done"),
    Mutant("prepare/generative.py", "initial_std=1.0 - LEAST", "initial_std=1.0", GENERATIVE, "the prior is not N(0, I)"),
    Mutant("prepare/weights.py", "if self.acts_by_noise:\n                return least", "if self.acts_by_noise:\n                return least / 3", GENERATIVE, "the noise is narrowed for nothing"),
    Mutant("priors/decoders.py", "if not np.allclose(decoded, self._run", "if False and not np.allclose(decoded, self._run", GENERATIVE, "a decoder draws numbers of its own"),
]  # fmt: skip


def main() -> None:
    """All mutants, or those whose file or description holds one of the words on the command line."""
    words = sys.argv[1:] or [""]
    chosen = [mutant for mutant in MUTANTS if any(word in f"{mutant.file} {mutant.what}" for word in words)]
    for mutant in chosen:
        check(mutant)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        package = copied(Path(folder))
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            if passes(tests, package) != 0:
                raise SystemExit(f"{tests} must pass before anything is broken")
    counts = dict.fromkeys(OUTCOMES.values(), 0)
    for mutant in chosen:
        outcome = OUTCOMES[dies(mutant)]
        counts[outcome] += 1
        print(f"{outcome:9s}  {mutant.file:18s} {mutant.what}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{', '.join(f'{count} {outcome}' for outcome, count in counts.items())}, in {seconds:.0f} s")
    sys.exit(0 if counts["killed"] == len(chosen) else 1)


def check(mutant: Mutant) -> None:
    """The text to replace must be there exactly once, or the mutant itself is out of date."""
    found = (ROOT / "src" / "repolicy" / mutant.file).read_text().count(mutant.old)
    if found != 1:
        raise SystemExit(f"{mutant.file} contains {mutant.old!r} {found} times, not once: bring the mutant up to date")


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT / "src" / "repolicy", folder / "src" / "repolicy"))


OUTCOMES = {True: "killed", False: "SURVIVED", None: "UNDECIDED"}


def dies(mutant: Mutant) -> bool | None:
    """Whether a test notices; None where the tests were not done in time: a busy machine is as slow as an endless loop."""
    with tempfile.TemporaryDirectory() as folder:
        package = copied(Path(folder))
        path = package / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        try:
            return passes(mutant.tests, package) == 1
        except subprocess.TimeoutExpired:
            return None


def passes(tests: str, package: Path) -> int:
    """pytest's exit code (0: all passed, 1: some failed) of the tests against this copy of the package."""
    code = (
        "import sys, pytest, repolicy\n"
        "sys.exit(pytest.main(sys.argv[2:]) if repolicy.__file__.startswith(sys.argv[1]) else 9)"
    )
    words = [sys.executable, "-c", code, str(package), "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
    done = subprocess.run(
        [*words, *tests.split()], cwd=ROOT, env=environment, capture_output=True, check=False, timeout=300
    )
    return done.returncode


if __name__ == "__main__":
    main()
