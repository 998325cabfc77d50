"""Many runs: a pool, a ledger of what is done, the sweep over ω′."""
