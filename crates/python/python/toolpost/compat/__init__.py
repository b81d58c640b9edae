"""Interfaces of other tool libraries, on top of Toolpost."""
