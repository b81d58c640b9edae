//! Loopback providers, in-memory ports and fixed clocks, for tests.
