"""The two methods in plain code, all rows at once and in float64: what the adapters are compared with."""
