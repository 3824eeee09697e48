"""Many runs: a sweep is started or resumed, reported on, and compared with another one."""
