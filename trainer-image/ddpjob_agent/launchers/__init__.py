"""Commands that are not torchrun: mpirun, SageMaker."""
