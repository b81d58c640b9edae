"""The interfaces of other tool libraries, on Toolpost: their users change one import."""
