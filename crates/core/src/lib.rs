//! The contracts of Toolpost: tools, calls, outputs, errors, records.
