"""Bugs of the server, the client and the pipelines, each of which breaks the promise of one row.

The test that a row of docs/reference/seeds.md names must fail with the row's bugs. The bugs are
injected into real processes. The environment variable ROW_MUTANT names one:

- `tests.spec.process.program` then starts `python -m tests.row_mutants` instead of `semel`;
- the plugin `tests.row_mutants.plugin` applies the bug to the process of pytest, where the client
  and the pipelines of a test run.
"""
