"""Defines the DDPJob resource: its fields, its checks, its CRD. Pure."""
