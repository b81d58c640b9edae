//! Starts a process and confines it: namespaces, Landlock, seccomp, cgroups, limits, files in and out.
