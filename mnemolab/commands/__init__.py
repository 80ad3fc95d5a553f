"""One file a command: `SUMMARY`, `add_arguments(parser)` and `run(args) -> exit code`; heavy imports belong inside `run`."""
