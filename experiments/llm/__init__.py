"""What the language-model trainers are worth, measured on languages whose best policy is known."""
