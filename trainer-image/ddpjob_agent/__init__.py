"""The part of ddpjob that runs in every worker pod and in the rendezvous pod.

Standard library only, Python 3.9 or newer: the zipapp runs in users' images of any kind.
"""
