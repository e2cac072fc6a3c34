//! Checks that the documents of the repository are correct: links, citations, names and tests exist, and every name in
//! the code that operators see is explained.

mod alerts;
mod citations;
mod commands;
mod configuration;
mod conformance;
mod events;
mod examples;
mod features;
mod guide;
#[path = "../guide_support/mod.rs"]
mod guide_support;
mod imports;
mod layers;
mod names;
mod packages;
mod repository;
mod sizes;
mod troubleshooting;
