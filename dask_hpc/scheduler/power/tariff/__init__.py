"""Series of prices, of carbon or of bounds, as files, and the rules that make a power corridor of them."""
