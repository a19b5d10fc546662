"""`python -m ddpjob` is the command `ddpjob`."""

from ddpjob_operator.cli.main import main

main()
