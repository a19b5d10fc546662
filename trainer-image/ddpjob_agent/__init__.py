"""The part of ddpjob that runs in every worker pod and in the rendezvous pod.

Standard library only, Python 3.9 or newer: it is put into images that we do not know.
"""
