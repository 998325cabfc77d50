"""Programs that train and tabulate; the library knows nothing of them."""
