"""Tables, evaluation and models of finished runs; used by the commands and
`seedbed.load` only."""
