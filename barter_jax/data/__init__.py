"""Data sets, batches and augmentation."""
