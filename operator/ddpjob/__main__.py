"""`python -m ddpjob` is the command `ddpjob`."""

from ddpjob_operator.cli.entry import main

main()
