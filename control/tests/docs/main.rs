//! What the documents of the repository say of its files: links, citations and names exist.

mod citations;
mod names;
mod repository;
