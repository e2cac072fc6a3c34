//! What the documents of the repository say of its files: links, citations, names and tests exist.

mod citations;
mod conformance;
mod names;
mod repository;
