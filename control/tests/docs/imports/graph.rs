//! The imports between the files of a crate, and their cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::source::{Content, Module, Source};

/// The maximum number of re-exports that are followed for one name.
const REEXPORTS_MAX: usize = 8;

/// The modules and files of a crate with their imports.
pub(super) struct Graph {
    /// The path of each module that is a file, from the directory of the root.
    files: BTreeMap<Module, String>,
    /// The modules that are files, and the modules inside files.
    modules: BTreeMap<Module, Content>,
}

/// Files that import from each other, directly or indirectly.
pub(super) struct Circle {
    /// Paths from the directory of the root.
    pub(super) files: BTreeSet<String>,
    /// The imports between these files.
    imports: BTreeMap<String, BTreeSet<String>>,
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (file, from) in &self.imports {
            let from: Vec<&str> = from.iter().map(String::as_str).collect();
            write!(f, "\n    {file} imports from {}", from.join(", "))?;
        }
        Ok(())
    }
}

/// The module of a file in the crate with this root.
fn module_of(path: &str, root: &str) -> Option<Module> {
    if path == root {
        return Some(Module::new());
    }
    let mut module: Module = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    Some(module)
}

impl Graph {
    /// `root` is the path of the file that declares the other modules. Files that it doesn't declare are left out.
    pub(super) fn new(root: &str, sources: &BTreeMap<&str, &str>) -> Self {
        let mut graph = Self { files: BTreeMap::new(), modules: BTreeMap::new() };
        let mut of_tests = BTreeSet::new();
        for (path, text) in sources {
            let Some(module) = module_of(path, root) else { continue };
            let source = Source::new(&module, text);
            graph.modules.extend(source.modules);
            of_tests.extend(source.of_tests);
            graph.files.insert(module, (*path).to_owned());
        }
        let is_of_tests = |module: &Module| (1..=module.len()).any(|n| of_tests.contains(&module[..n]));
        graph.files.retain(|module, _| !is_of_tests(module));
        graph.modules.retain(|module, _| !is_of_tests(module));
        let declares = |module: &[String], name: &String| {
            graph.modules.get(module).is_some_and(|content| content.defines.contains(name))
        };
        let is_declared = |module: &Module| (0..module.len()).all(|n| declares(&module[..n], &module[n]));
        let declared: BTreeSet<Module> =
            graph.modules.keys().filter(|module| is_declared(module)).cloned().collect();
        graph.files.retain(|module, _| declared.contains(module));
        graph.modules.retain(|module, _| declared.contains(module));
        graph
    }

    /// The file of a module: its own, or the one that contains it.
    fn file_of<'m>(&self, module: &'m [String]) -> &'m [String] {
        let is_file = |n: &usize| self.files.contains_key(&module[..*n]);
        &module[..(0..=module.len()).rev().find(is_file).unwrap_or(0)]
    }

    /// The module that defines the target of a path in `from`. `None` if the target is outside the crate.
    fn target(&self, from: &[String], path: &[String], follow: usize) -> Option<Module> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.to_vec(), &path[1..]),
            "super" => {
                let up = path.iter().take_while(|word| *word == "super").count();
                (from.get(..from.len().checked_sub(up)?)?.to_vec(), &path[up..])
            }
            first => {
                let content = self.modules.get(from)?;
                let child = [from, &path[..1]].concat();
                if self.modules.contains_key(&child) {
                    (from.to_vec(), path)
                } else {
                    let imported = content.imports.get(first).filter(|_| follow > 0)?;
                    // The path starts with a crate that is named like the import.
                    if imported.first().is_some_and(|word| word == first) {
                        return None;
                    }
                    let whole = [imported, &path[1..]].concat();
                    return self.target(from, &whole, follow - 1);
                }
            }
        };
        while let Some(next) = rest.first() {
            let child = [&module[..], std::slice::from_ref(next)].concat();
            if !self.modules.contains_key(&child) {
                break;
            }
            (module, rest) = (child, &rest[1..]);
        }
        let (Some(name), Some(content)) = (rest.first(), self.modules.get(&module)) else {
            return Some(module);
        };
        if content.defines.contains(name) || follow == 0 {
            return Some(module);
        }
        if let Some(reexported) = content.imports.get(name) {
            let whole = [reexported, &rest[1..]].concat();
            return self.target(&module, &whole, follow - 1);
        }
        for glob in &content.globs {
            let all_of = self.target(&module, glob, follow - 1);
            let defines = |of: &Module| self.modules.get(of).is_some_and(|of| of.defines.contains(name));
            if let Some(all_of) = all_of.filter(defines) {
                return Some(all_of);
            }
        }
        Some(module)
    }

    /// The imports of each file.
    fn imports(&self) -> BTreeMap<&[String], BTreeSet<Module>> {
        let mut imports: BTreeMap<&[String], BTreeSet<Module>> = BTreeMap::new();
        for (module, content) in &self.modules {
            let file = self.file_of(module);
            for (path, is_public) in &content.paths {
                let Some(target) = self.target(module, path, REEXPORTS_MAX) else { continue };
                let target = self.file_of(&target).to_vec();
                let is_reexport = *is_public && target.starts_with(file);
                if target != file && !is_reexport {
                    imports.entry(file).or_default().insert(target);
                }
            }
        }
        imports
    }

    pub(super) fn circles(&self) -> Vec<Circle> {
        let imports = self.imports();
        let none = BTreeSet::new();
        let reached = |from: &Module| {
            let mut reached: BTreeSet<&Module> = BTreeSet::new();
            let mut next: Vec<&Module> = imports.get(from.as_slice()).unwrap_or(&none).iter().collect();
            while let Some(module) = next.pop() {
                if reached.insert(module) {
                    next.extend(imports.get(module.as_slice()).unwrap_or(&none));
                }
            }
            reached
        };
        let all: BTreeMap<&Module, BTreeSet<&Module>> =
            self.files.keys().map(|module| (module, reached(module))).collect();
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, reached) in all.iter().filter(|(module, reached)| reached.contains(*module)) {
            if !seen.insert(module) {
                continue;
            }
            let back = |other: &&&Module| all.get(**other).is_some_and(|reached| reached.contains(module));
            let members: BTreeSet<&Module> = reached.iter().filter(back).copied().collect();
            seen.extend(&members);
            let name = |module: &Module| self.files[module].clone();
            let within = |module: &Module| {
                let from = imports.get(module.as_slice()).unwrap_or(&none);
                (name(module), from.iter().filter(|one| members.contains(one)).map(name).collect())
            };
            circles.push(Circle {
                files: members.iter().map(|module| name(module)).collect(),
                imports: members.iter().map(|module| within(module)).collect(),
            });
        }
        circles
    }
}
