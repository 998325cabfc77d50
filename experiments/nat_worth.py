"""What a nat of each shipped prior is worth.

python -m experiments.nat_worth --out results/nat_worth.json
"""

import argparse
import json
from pathlib import Path

from repolicy.engine.worth import EPISODES, measured
from repolicy.policies.file import env_of, find_policy, read_policy, shipped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/nat_worth.json"))
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--priors", nargs="+", default=shipped())
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.priors:
        path = find_policy(name)
        saved = read_policy(path)
        env = env_of(saved.card, path)
        found = measured(saved.policy, env, options.episodes)
        if found is None:
            continue
        alpha = saved.card["request"]["objective"]["alpha"]
        command = f"python -m experiments.nat_worth --priors {name} --episodes {options.episodes}"
        rows[name] = {"env": env, "alpha": alpha, **found.as_dict(), "command": command}
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
        print(f"{name:12s} {found.value:.3g} ± {found.error:.2g}; trained at {alpha:g}")


if __name__ == "__main__":
    main()
