//! Keys of plans as the code declares them: names, kinds, defaults and what their doc comments say.

#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use quote::ToTokens;
use syn::{Attribute, Expr, Fields, FieldsNamed, Item, Lit, Meta, Stmt, Type};

/// Everything declared in some files.
#[derive(Default)]
pub struct Declared {
    types: BTreeMap<String, Item>,
    /// What the functions that defaults are taken from return.
    functions: BTreeMap<String, String>,
    /// Fields of `impl Default`.
    defaults: BTreeMap<String, BTreeMap<String, String>>,
    /// Titles of the sections about types.
    pub sections: BTreeMap<String, String>,
}

impl Declared {
    /// Reads a file of source code. Functions are known by file: several are called alike.
    pub fn read(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file = syn::parse_file(&text).unwrap();
        let mut functions = BTreeMap::new();
        for item in &file.items {
            if let Item::Fn(function) = item
                && let [Stmt::Expr(value, None)] = &function.block.stmts[..]
            {
                functions.insert(function.sig.ident.to_string(), written(value));
            }
        }
        for item in file.items {
            match &item {
                Item::Struct(declared) => {
                    let name = declared.ident.to_string();
                    self.functions.extend(
                        functions.iter().map(|(function, value)| (format!("{name}/{function}"), value.clone())),
                    );
                    self.types.insert(name, item);
                }
                Item::Enum(declared) => {
                    let name = declared.ident.to_string();
                    self.functions.extend(
                        functions.iter().map(|(function, value)| (format!("{name}/{function}"), value.clone())),
                    );
                    self.types.insert(name, item);
                }
                Item::Impl(block) if block.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Default")) => {
                    let name = block.self_ty.to_token_stream().to_string();
                    let mut fields = BTreeMap::new();
                    for part in &block.items {
                        let syn::ImplItem::Fn(function) = part else { continue };
                        // Values that were given a name first.
                        let mut named = BTreeMap::new();
                        for statement in &function.block.stmts {
                            match statement {
                                Stmt::Local(local) => {
                                    let value = local.init.as_ref().map_or(String::new(), |init| written(&init.expr));
                                    named.insert(local.pat.to_token_stream().to_string(), value);
                                }
                                Stmt::Expr(Expr::Struct(made), None) => {
                                    for field in &made.fields {
                                        let name = field.member.to_token_stream().to_string();
                                        let value = named.get(&name).filter(|_| field.colon_token.is_none());
                                        fields.insert(name, value.cloned().unwrap_or_else(|| written(&field.expr)));
                                    }
                                }
                                _ => {}
                            }
                        }
                    }
                    self.defaults.insert(name, fields);
                }
                _ => {}
            }
        }
    }

    /// What there is to know of a type: a table of keys, or one for each variant.
    pub fn section(&self, name: &str) -> String {
        let item = self.types.get(name).unwrap_or_else(|| panic!("there is no {name}"));
        let mut text = String::new();
        match item {
            Item::Struct(declared) => {
                let Fields::Named(fields) = &declared.fields else { panic!("{name} has no keys") };
                let all = serde(&declared.attrs).iter().any(|said| said == "default");
                self.table(&mut text, name, fields, all);
            }
            Item::Enum(declared) => {
                let plain: Vec<_> =
                    declared.variants.iter().filter(|variant| matches!(variant.fields, Fields::Unit)).collect();
                for variant in &plain {
                    let default = if has(&variant.attrs, "default") { " (default)" } else { "" };
                    writeln!(
                        text,
                        "- `{}`{default}: {}",
                        spelled(&variant.ident.to_string(), &variant.attrs),
                        doc(&variant.attrs)
                    )
                    .unwrap();
                }
                for variant in declared.variants.iter().filter(|variant| !matches!(variant.fields, Fields::Unit)) {
                    let spelled = spelled(&variant.ident.to_string(), &variant.attrs);
                    match &variant.fields {
                        Fields::Named(fields) => {
                            writeln!(text, "\n**`{spelled}`**: {}\n", doc(&variant.attrs)).unwrap();
                            self.table(&mut text, name, fields, false);
                        }
                        // What it holds has a section of its own.
                        _ => writeln!(text, "- `{spelled}`: {}", doc(&variant.attrs)).unwrap(),
                    }
                }
            }
            _ => panic!("{name} is neither struct nor enum"),
        }
        text
    }

    /// What a type's own doc comment says, up to its first heading, table or example.
    pub fn opening(&self, name: &str) -> String {
        doc(self.attributes(name))
    }

    /// The same with how it is written, of a type that is text: what its second paragraph says.
    pub fn spellings(&self, name: &str) -> String {
        let attributes = self.attributes(name);
        let mut skipped = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
        let second = skipped.position(|attribute| doc(std::slice::from_ref(attribute)).is_empty());
        let second = second.unwrap_or_else(|| panic!("{name} does not say how it is written"));
        let rest: Vec<_> =
            attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).skip(second + 1).cloned().collect();
        format!("{}\n\n{}\n", doc(attributes), doc(&rest))
    }

    fn attributes(&self, name: &str) -> &[Attribute] {
        match self.types.get(name) {
            Some(Item::Struct(declared)) => &declared.attrs,
            Some(Item::Enum(declared)) => &declared.attrs,
            _ => panic!("there is no {name}"),
        }
    }

    fn table(&self, text: &mut String, name: &str, fields: &FieldsNamed, all_default: bool) {
        text.push_str("| key | takes | default | |\n| --- | --- | --- | --- |\n");
        for field in &fields.named {
            let key = field.ident.as_ref().unwrap().to_string();
            let said = serde(&field.attrs);
            if said.iter().any(|said| said == "skip" || said == "flatten") {
                continue;
            }
            let function = said.iter().find_map(|said| said.strip_prefix("default = "));
            let default = match function {
                Some(function) => {
                    let function = function.trim_matches('"');
                    self.functions
                        .get(&format!("{name}/{function}"))
                        .cloned()
                        .unwrap_or_else(|| panic!("{name}.{key}: {function}"))
                }
                None if self.defaults.get(name).is_some_and(|fields| fields.contains_key(&key)) => {
                    self.defaults[name][&key].clone()
                }
                None if self.defaults.contains_key(name) => panic!("{name}.{key}: its default was not found"),
                None if all_default || said.iter().any(|said| said == "default") => self.usual(&field.ty),
                None if takes(&field.ty).1 => "–".into(),
                None => "**needed**".into(),
            };
            writeln!(
                text,
                "| `{key}` | {} | {} | {} |",
                self.choices(&field.ty),
                coded(&default),
                doc(&field.attrs).replace('|', "\\|")
            )
            .unwrap();
        }
    }

    /// What a key takes: of a type with nothing but names, the names.
    fn choices(&self, kind: &Type) -> String {
        let (words, _) = takes(kind);
        let bare = kind.to_token_stream().to_string().replace(' ', "");
        let bare = bare.trim_start_matches("Option<").trim_start_matches("Vec<").trim_end_matches('>');
        match self.types.get(bare) {
            Some(Item::Enum(declared)) if declared.variants.iter().all(|variant| variant.fields.is_empty()) => {
                let names = declared.variants.iter().map(|variant| spelled(&variant.ident.to_string(), &variant.attrs));
                let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
                let list = if words.starts_with("list") { "list: " } else { "" };
                format!("{list}{}", names.join(", "))
            }
            _ => match self.sections.get(bare) {
                Some(title) => words.replace(&format!("`{}`", kebab(bare)), &format!("[{title}](#{})", anchor(title))),
                None => words,
            },
        }
    }

    /// `Default::default()` of a type, as a plan writes it.
    fn usual(&self, kind: &Type) -> String {
        let (name, optional) = takes(kind);
        if optional {
            return "–".into();
        }
        let bare = kind.to_token_stream().to_string();
        match name.as_str() {
            "whole number" | "number" => return "0".into(),
            "true or false" => return "false".into(),
            _ if bare.starts_with("Vec") => return "[]".into(),
            _ => {}
        }
        match self.types.get(&bare) {
            Some(Item::Enum(declared)) => declared
                .variants
                .iter()
                .find(|variant| has(&variant.attrs, "default"))
                .map_or("–".into(), |variant| spelled(&variant.ident.to_string(), &variant.attrs)),
            _ => "its own".into(),
        }
    }
}

/// Where a book puts a heading: its letters and digits, and a dash for each space.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

/// A default in a table.
fn coded(default: &str) -> String {
    match default {
        "–" | "**needed**" | "its own" => default.to_owned(),
        value => format!("`{value}`"),
    }
}

/// What a key takes, in words, and whether it may be absent.
fn takes(kind: &Type) -> (String, bool) {
    let bare = kind.to_token_stream().to_string().replace(' ', "");
    if let Some(inner) = bare.strip_prefix("Option<").and_then(|inner| inner.strip_suffix('>')) {
        return (takes(&syn::parse_str(inner).unwrap()).0, true);
    }
    if let Some(inner) = bare.strip_prefix("Vec<").and_then(|inner| inner.strip_suffix('>')) {
        return (format!("list: {}", takes(&syn::parse_str(inner).unwrap()).0), false);
    }
    let words = match bare.as_str() {
        "f64" => "number",
        "usize" | "u64" | "u32" => "whole number",
        "bool" => "true or false",
        "String" => "text",
        "PathBuf" => "path",
        "[f64;2]" => "two numbers",
        "[f64;3]" => "three numbers",
        "[usize;2]" => "two whole numbers",
        "DType" => "`f32`, `f64`",
        "AnyAttack" => "an attack: `kind` and settings",
        "(String,Init)" => "a layer's name and its [init](#init)",
        other => return (format!("`{}`", kebab(other)), false),
    };
    (words.into(), false)
}

/// An expression as a plan would write its value.
fn written(value: &Expr) -> String {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => text.value(),
            other => other.to_token_stream().to_string(),
        },
        Expr::Path(path) => {
            path.path.segments.last().map_or(String::new(), |last| match last.ident.to_string().as_str() {
                "None" => "–".into(),
                other => kebab(other),
            })
        }
        Expr::MethodCall(call) if call.method == "into" => written(&call.receiver),
        Expr::Macro(call) if call.mac.path.is_ident("vec") => {
            let parts: syn::punctuated::Punctuated<Expr, syn::Token![,]> =
                call.mac.parse_body_with(syn::punctuated::Punctuated::parse_terminated).unwrap();
            format!("[{}]", parts.iter().map(written).collect::<Vec<_>>().join(", "))
        }
        Expr::Array(list) => format!("[{}]", list.elems.iter().map(written).collect::<Vec<_>>().join(", ")),
        Expr::Struct(made) => {
            let name = made.path.segments.last().map_or(String::new(), |last| kebab(&last.ident.to_string()));
            // A function with one parameter is text.
            if made.fields.len() == 1 {
                return format!("{name}({})", written(&made.fields[0].expr));
            }
            let fields = made
                .fields
                .iter()
                .map(|field| format!("{} = {}", field.member.to_token_stream(), written(&field.expr)));
            format!("{name} {{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        Expr::Call(call) if call.args.is_empty() => match written(&call.func).as_str() {
            "new" => "[]".into(),
            "default" => "its own".into(),
            other => other.into(),
        },
        Expr::Call(call) => {
            let inside: Vec<String> = call.args.iter().map(written).collect();
            match written(&call.func).as_str() {
                "some" => inside.join(", "),
                "sgd" => format!("{{ kind = \"sgd\", lr = {} }}", inside.join(", ")),
                name => format!("{name}({})", inside.join(", ")),
            }
        }
        Expr::Unary(negated) => format!("-{}", written(&negated.expr)),
        other => other.to_token_stream().to_string(),
    }
}

/// How a variant is spelled in a plan.
fn spelled(name: &str, attributes: &[Attribute]) -> String {
    let renamed = serde(attributes)
        .into_iter()
        .find_map(|said| said.strip_prefix("rename = ").map(|name| name.trim_matches('"').to_owned()));
    renamed.unwrap_or_else(|| kebab(name))
}

fn kebab(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() && !text.ends_with('-') {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The words of `#[serde(…)]`.
fn serde(attributes: &[Attribute]) -> Vec<String> {
    let mut words = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let parts =
            attribute.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated).unwrap();
        words.extend(parts.iter().map(|part| part.to_token_stream().to_string()));
    }
    words
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

/// The first paragraph of a doc comment, in one line, without the links that only rustdoc can follow.
fn doc(attributes: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        if let Meta::NameValue(value) = &attribute.meta
            && let Expr::Lit(literal) = &value.value
            && let Lit::Str(text) = &literal.lit
        {
            lines.push(text.value().trim().to_owned());
        }
    }
    let first: Vec<String> = lines.into_iter().take_while(|line| !line.is_empty()).collect();
    plain(&first.join(" "))
}

/// Text without the links that only rustdoc can follow: [`x`] and [`x`](y) become `x`.
pub fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("[`") {
        let Some(end) = rest[start..].find("`]").map(|end| start + end) else { break };
        out.push_str(&rest[..start]);
        out.push_str(&rest[start + 1..=end]);
        rest = &rest[end + 2..];
        if rest.starts_with('(')
            && let Some(close) = rest.find(')')
        {
            rest = &rest[close + 1..];
        }
    }
    out + rest
}
