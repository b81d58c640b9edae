"""Interfaces of other tool libraries on Toolpost's engine: users of these libraries change one import."""
