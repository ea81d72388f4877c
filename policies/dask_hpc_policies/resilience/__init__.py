"""Models of resilience: what failures cost, and what protects against them."""
