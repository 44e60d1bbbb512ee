"""Builders of data sets that are not in the catalogue of TensorFlow Datasets."""
