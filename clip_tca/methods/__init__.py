"""Base methods of test-time adaptation, one file each. None of them uses TCA."""
