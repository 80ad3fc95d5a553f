"""Judging functions: finished runs in, one number a seed out. The rules are elsewhere (`mnemolab.analysis.claims.rules`)."""
