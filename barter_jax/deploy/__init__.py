"""Compact models outside of training: loading, and evaluation of what is deployed."""
