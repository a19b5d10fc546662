"""The output of a worker's processes: to the agent's log, and to the screen of a local run.

    rank ──FIFO──► agent ──► log
                     └─Unix socket──► ddpjob run --local

On a cluster, only stderr passes through the agent. For a local run (ENV_OUTPUT), the agent gives
each rank two FIFOs, so each line has its rank. A slow or dead screen costs lines, and never time.
A log that nothing reads costs lines, too: `log_writer` never delays the agent.
"""
