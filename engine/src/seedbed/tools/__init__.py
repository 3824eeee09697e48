"""Commands on finished runs: tables, evaluations, their models. Nothing else imports it."""
