"""Commands on finished runs: tables, evaluations, exports, packages. Nothing else imports it."""
