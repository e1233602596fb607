"""An evaluation run: inputs, streams, settings and protocols, methods, base-method runs, measures, cost, the runner."""
