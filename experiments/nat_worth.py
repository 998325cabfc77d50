"""What a nat of each shipped prior is worth: into `results/nat_worth.json`, and from there onto the priors' cards.

python -m experiments.nat_worth

A prior whose row is there is not measured again, unless --priors names it.
"""

import argparse
import json
from dataclasses import asdict
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
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.priors or shipped():
        path = find_policy(name)
        if options.priors or name not in rows:
            saved = read_policy(path)
            env = env_of(saved.card, path)
            found = measured(saved.policy, env, options.episodes)
            if found is None:
                continue
            alpha = saved.card["request"]["objective"]["alpha"]
            command = f"python -m experiments.nat_worth --priors {name} --episodes {options.episodes}"
            rows[name] = {"env": env, "alpha": alpha, **asdict(found), "command": command, "commit": commit()}
            options.out.write_text(json.dumps(rows, indent=2) + "\n")
        row = rows[name]
        add_to_card(path, {"nat_worth": {key: row[key] for key in ("value", "error", "episodes")}})
        print(f"{name:12s} {row['value']:.3g} ± {row['error']:.2g}; trained at {row['alpha']:g}")


if __name__ == "__main__":
    main()
