"""Forms made from what is declared, and the models behind them."""
