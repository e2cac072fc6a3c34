//! What the documents of the repository say is so: links, citations, names and tests exist, and every word of the code that
//! operators meet is explained.

mod citations;
mod configuration;
mod conformance;
mod features;
mod imports;
mod names;
mod repository;
mod troubleshooting;
