"""Reconfiguration: decisions carried out, reductions before growth."""
