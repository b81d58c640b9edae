//! The call path: every call validated, permitted, queued, run, limited and recorded.
