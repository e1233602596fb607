"""An evaluation run: inputs, settings and protocols, methods with options, runs of base methods, cost, the runner."""
