"""What a nat of each shipped prior is worth: into `results/nat_worth.json`, and from there onto the priors' cards.

python -m experiments.nat_worth

A prior whose row is there is not measured again, unless --priors names it. With `--std 0.7` sampled actions have that
share of the prior's std: a nat is still one of the prior's, and no card is written.
"""

import argparse
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

from experiments.ledger import commit
from repolicy.envs.trust import env_of
from repolicy.policies.file import add_to_card
from repolicy.prepare.worth import measured
from repolicy.priors.finding import find_policy, shipped
from repolicy.priors.opening import read_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("results/nat_worth.json"))
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--priors", nargs="+")
    parser.add_argument("--std", type=float, default=1.0)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    narrower = "" if options.std == 1.0 else f" --std {options.std:g}"
    for name in options.priors or shipped():
        path = find_policy(name)
        if options.priors or name + narrower not in rows:
            saved = read_policy(path)
            env = env_of(saved.card, path)
            assert saved.policy.log_std is not None
            saved.policy.log_std.data += math.log(options.std)
            found = measured(saved.policy, env, options.episodes)
            if found is None:
                continue
            share = options.std**2  # a nat of the narrower policy is this share of one of the prior's
            found = replace(found, value=found.value / share, error=found.error / share)
            alpha = saved.card["request"]["objective"]["alpha"]
            command = f"python -m experiments.nat_worth --priors {name} --episodes {options.episodes}{narrower}"
            told = {"env": env, "alpha": alpha, "std": options.std}
            rows[name + narrower] = {**told, **asdict(found), "command": command, "commit": commit()}
            options.out.write_text(json.dumps(rows, indent=2) + "\n")
        row = rows[name + narrower]
        if not narrower:
            add_to_card(path, {"nat_worth": {key: row[key] for key in ("value", "error", "episodes")}})
        print(f"{name:12s} {row['value']:.3g} ± {row['error']:.2g}; trained at {row['alpha']:g}")


if __name__ == "__main__":
    main()
