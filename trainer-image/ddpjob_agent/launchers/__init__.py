"""Launchers other than torchrun: mpirun and SageMaker."""
