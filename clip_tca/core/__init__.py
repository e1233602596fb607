"""What every room builds on: tensors, checks, files, the device, processes and provenance."""
