//! Claims about the source as a whole.
