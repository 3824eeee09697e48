"""A search for settings: an Optuna study whose trials are runs."""
