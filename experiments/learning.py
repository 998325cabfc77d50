"""Train the priors' tasks from nothing, over seeds, and measure what was learned: a line of the ledger a run.

    python -m experiments.learning --jobs 2

A run that is in the ledger is not repeated; one that was interrupted goes on where its last checkpoint stands.
"""

from experiments import campaign
from experiments.one import Run

VARIED = "HalfCheetah-v4?reset_noise_scale=0.3"  # from varied starts, for a prior that knows how to get up
RUNS = {
    "HalfCheetah-v4": "--objective soft --alpha 0.13472 --steps 3e6",
    VARIED: "--objective soft --alpha 0.13472 --steps 3e6",
    "Hopper-v4": "--objective soft --alpha 0.001 --steps 3e6",
    "Ant-v4": "--objective soft --alpha 0.0001 --steps 3e6",
    "CartPole-v1": "--objective no_entropy",
    "Pendulum-v1": "--objective no_entropy",
}


def run(env: str, seed: int) -> Run:
    words = ("train", env, *RUNS[env].split(), "--seed", str(seed), "--ranks", "1")
    return Run(f"{env}/{seed}", words, env.partition("?")[0])


def main() -> None:
    parser = campaign.parser("learning", __doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--envs", nargs="+", default=list(RUNS), choices=list(RUNS))
    options = parser.parse_args()
    campaign.fill([run(env, seed) for seed in range(options.seeds) for env in options.envs], options)


if __name__ == "__main__":
    campaign.run_main(main)
