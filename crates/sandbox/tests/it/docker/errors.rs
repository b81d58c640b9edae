//! Daemons that are gone, hang, lie or lose containers: each a typed error within its time.
