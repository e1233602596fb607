"""The base of all other packages: tensors, checks, files, device, processes and provenance."""
