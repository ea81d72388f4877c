"""The rules that policies are made of."""
