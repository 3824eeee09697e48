"""Many runs: the report of a sweep, two sweeps compared, a sweep resumed."""
