//! Filters of lists and dicts.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

use super::super::arguments::{bind, divide, needed};
use super::super::compare::{self, comparable, keyed, sort_key};
use super::super::meter::{self, ITEM_BYTES};
use super::super::operators::{add, item};
use super::super::sequence::{Kind, Method, Sequence, invalid, tuple_items, type_name, walk};
use super::super::{methods, python};
use super::{Filter, count};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("length", length),
    ("count", length),
    ("first", first),
    ("last", last),
    ("min", |_, arguments| extreme("min", arguments)),
    ("max", |_, arguments| extreme("max", arguments)),
    ("sum", sum),
    ("list", |_, arguments| meter::list(walk(&arguments[0])?, 0)),
    ("reverse", reverse),
    ("sort", sort),
    ("unique", unique),
    ("join", join_filter),
    ("batch", batch),
    ("slice", slice),
    ("groupby", groupby),
    ("dictsort", dictsort),
    ("items", items),
    ("attr", attr),
    ("map", map),
    ("select", |state, arguments| chosen(state, "select", arguments, Choice { by_attribute: false, keeps: true })),
    ("reject", |state, arguments| chosen(state, "reject", arguments, Choice { by_attribute: false, keeps: false })),
    ("selectattr", |state, arguments| {
        chosen(state, "selectattr", arguments, Choice { by_attribute: true, keeps: true })
    }),
    ("rejectattr", |state, arguments| {
        chosen(state, "rejectattr", arguments, Choice { by_attribute: true, keeps: false })
    }),
    // Not Jinja's, but known to templates of other engines.
    ("chain", |_, arguments| {
        let mut all = Vec::new();
        for argument in arguments {
            let more = walk(argument)?;
            meter::room(2 * (all.len() + more.len()) * ITEM_BYTES)?;
            all.extend(more);
        }
        meter::list(all, 0)
    }),
    ("zip", |_, arguments| {
        let lists = arguments.iter().map(walk).collect::<Result<Vec<_>, _>>()?;
        let n = lists.iter().map(Vec::len).min().unwrap_or(0);
        let row = |i: usize| Sequence::value(Kind::Tuple, lists.iter().map(|list| list[i].clone()).collect(), 0);
        lazy((0..n).map(row).collect::<Result<_, _>>()?)
    }),
];

fn lazy(items: Vec<Value>) -> Result<Value, Error> {
    Sequence::value(Kind::Lazy, items, 0)
}

fn length(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("length", [], &arguments[1..])?;
    length_of(&arguments[0]).map(Value::from)
}

/// Returns `len(value)`.
pub(super) fn length_of(value: &Value) -> Result<usize, Error> {
    let has_none = Sequence::of(value).is_some_and(|sequence| sequence.kind == Kind::Lazy);
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().chars().count()),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map if !has_none => Ok(value.len().unwrap_or(0)),
        _ => Err(invalid(format!("object of type '{}' has no len()", type_name(value)))),
    }
}

fn first(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("first", [], &arguments[1..])?;
    let value = &arguments[0];
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            let first = value.try_iter()?.next();
            Sequence::of(value).inspect(|sequence| sequence.take(1));
            Ok(first.unwrap_or_default())
        }
        _ => Ok(walk(value)?.into_iter().next().unwrap_or_default()),
    }
}

fn last(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("last", [], &arguments[1..])?;
    if Sequence::of(&arguments[0]).is_some_and(|sequence| sequence.kind == Kind::Lazy) {
        return Err(invalid("'generator' object is not reversible"));
    }
    Ok(walk(&arguments[0])?.pop().unwrap_or_default())
}

fn is_on(option: Option<&Value>) -> bool {
    option.is_some_and(Value::is_true)
}

/// Returns the attribute that a filter was given by name.
fn given(option: Option<Value>) -> Option<Value> {
    option.filter(|attribute| !attribute.is_none())
}

/// Returns what an attribute of items leads to: `a.b.0`.
fn attribute_of(value: &Value, path: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let mut found = value.clone();
    match path.as_str() {
        None => found = or_default(item(&found, path)?, default),
        Some(path) => {
            for part in path.split('.') {
                let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
                let key = match is_number {
                    true => Value::from(part.parse::<u32>().unwrap_or(u32::MAX)),
                    false => Value::from(part),
                };
                found = or_default(item(&found, &key)?, default);
            }
        }
    }
    Ok(found)
}

fn or_default(value: Value, default: Option<&Value>) -> Value {
    match default {
        Some(default) if value.is_undefined() => default.clone(),
        _ => value,
    }
}

/// Returns an item's key to compare it by.
fn key_of(value: &Value, attribute: Option<&Value>, is_case_sensitive: bool) -> Result<Value, Error> {
    let key = attribute.map_or_else(|| Ok(value.clone()), |path| attribute_of(value, path, None))?;
    sort_key(&key, is_case_sensitive)
}

fn extreme(what: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [sensitive, attribute] = bind(what, ["case_sensitive", "attribute"], &arguments[1..])?;
    let attribute = given(attribute);
    let keyed = keyed(&arguments[0], |item| key_of(item, attribute.as_ref(), is_on(sensitive.as_ref())))?;
    let wanted = if what == "min" { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed {
        let is_better = match &best {
            None => true,
            Some((best, _)) => {
                comparable(&key, best)?;
                compare::order(if what == "min" { "<" } else { ">" }, &key, best)? == Some(wanted)
            }
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn sum(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [attribute, start] = bind("sum", ["attribute", "start"], &arguments[1..])?;
    let attribute = given(attribute);
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return Err(invalid("sum() can't sum strings"));
    }
    for item in walk(&arguments[0])? {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |path| attribute_of(&item, path, None))?;
        total = add(&total, &item)?;
    }
    Ok(total)
}

fn reverse(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("reverse", [], &arguments[1..])?;
    let value = &arguments[0];
    if let Some(text) = value.as_str() {
        return super::like(value, text.chars().rev().collect());
    }
    if Sequence::of(value).is_some_and(|sequence| sequence.kind == Kind::Lazy) {
        // Jinja makes a list of it.
        let mut items = walk(value)?;
        items.reverse();
        return meter::list(items, 0);
    }
    let mut items = walk(value)?;
    items.reverse();
    lazy(items)
}

fn sort(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [reverse, sensitive, attribute] = bind("sort", ["reverse", "case_sensitive", "attribute"], &arguments[1..])?;
    let (attribute, is_sensitive) = (given(attribute), is_on(sensitive.as_ref()));
    let paths: Option<Vec<Value>> = match attribute.as_ref().map(|path| (path, path.as_str())) {
        Some((_, Some(path))) => Some(path.split(',').map(Value::from).collect()),
        Some((path, None)) => Some(vec![path.clone()]),
        None => None,
    };
    let key = |item: &Value| match &paths {
        None => key_of(item, None, is_sensitive),
        Some(paths) => {
            let keys = paths.iter().map(|path| key_of(item, Some(path), is_sensitive));
            meter::list(keys.collect::<Result<_, _>>()?, 0)
        }
    };
    let mut keyed = keyed(&arguments[0], key)?;
    compare::sort(&mut keyed, is_on(reverse.as_ref()))?;
    meter::list(keyed.into_iter().map(|(_, item)| item).collect(), 0)
}

fn unique(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [sensitive, attribute] = bind("unique", ["case_sensitive", "attribute"], &arguments[1..])?;
    let attribute = given(attribute);
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    for (key, item) in keyed(&arguments[0], |item| key_of(item, attribute.as_ref(), is_on(sensitive.as_ref())))? {
        if !compare::can_be_key(&key) {
            return Err(invalid(format!("unhashable type: '{}'", type_name(&key))));
        }
        let mut is_known = false;
        for other in &seen {
            comparable(&key, other)?;
            is_known |= compare::equal(&key, other);
        }
        if !is_known {
            seen.push(key);
            kept.push(item);
        }
    }
    lazy(kept)
}

fn join_filter(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, attribute] = bind("join", ["d", "attribute"], &arguments[1..])?;
    let separator = separator.as_ref().map_or(Ok(std::borrow::Cow::Borrowed("")), python::to_str)?;
    let Some(path) = given(attribute) else { return join(&arguments[0], &separator) };
    let items = walk(&arguments[0])?.iter().map(|item| attribute_of(item, &path, None)).collect::<Result<_, _>>()?;
    join(&meter::list(items, 0)?, &separator)
}

/// Returns the items as texts, with a separator between them.
fn join(value: &Value, separator: &str) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in walk(value)?.iter().enumerate() {
        let item = python::to_str(item)?;
        methods::push_joined(&mut out, if i > 0 { separator } else { "" }, &item)?;
    }
    meter::text(out)
}

fn batch(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [n, fill] = bind("batch", ["linecount", "fill_with"], &arguments[1..])?;
    let n = count("batch", n.as_ref())?.filter(|n| *n > 0).ok_or_else(|| invalid("batch needs a count above 0"))?;
    let mut rows = Vec::new();
    for row in walk(&arguments[0])?.chunks(n) {
        let mut row = row.to_vec();
        if let Some(fill) = given(fill.clone()) {
            meter::work(n * ITEM_BYTES)?;
            row.resize(n, fill);
        }
        rows.push(meter::list(row, 0)?);
    }
    lazy(rows)
}

fn slice(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [n, fill] = bind("slice", ["slices", "fill_with"], &arguments[1..])?;
    let n = count("slice", n.as_ref())?.filter(|n| *n > 0).ok_or_else(|| invalid("slice needs a count above 0"))?;
    meter::work(n * ITEM_BYTES)?;
    let items = walk(&arguments[0])?;
    let (n_each, n_more) = (items.len() / n, items.len() % n);
    let mut rows = Vec::new();
    for i in 0..n {
        let start = i * n_each + i.min(n_more);
        let mut row = items[start..start + n_each + usize::from(i < n_more)].to_vec();
        row.extend(given(fill.clone()).filter(|_| i >= n_more));
        rows.push(meter::list(row, 0)?);
    }
    lazy(rows)
}

fn groupby(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [attribute, default, sensitive] = bind("groupby", ["attribute", "default", "case_sensitive"], &arguments[1..])?;
    let (path, is_sensitive) = (needed("groupby", attribute)?, is_on(sensitive.as_ref()));
    let own = |item: &Value| attribute_of(item, &path, default.as_ref());
    let mut keyed = keyed(&arguments[0], |item| sort_key(&own(item)?, is_sensitive))?;
    compare::sort(&mut keyed, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in keyed {
        match groups.last_mut().filter(|(last, _)| compare::equal(last, &key)) {
            Some((_, items)) => items.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    let group = |(_, items): (Value, Vec<Value>)| {
        let grouper = own(&items[0])?;
        Sequence::value(Kind::Group, vec![grouper, meter::list(items, 0)?], 0)
    };
    meter::list(groups.into_iter().map(group).collect::<Result<_, _>>()?, 0)
}

fn dictsort(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [sensitive, by, reverse] = bind("dictsort", ["case_sensitive", "by", "reverse"], &arguments[1..])?;
    let at = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(invalid("You can only sort by either \"key\" or \"value\"")),
    };
    let pairs = pairs(&arguments[0])?;
    let key = |pair: &Value| sort_key(&tuple_items(pair).unwrap_or_default()[at], is_on(sensitive.as_ref()));
    let mut keyed = pairs.into_iter().map(|pair| Ok((key(&pair)?, pair))).collect::<Result<Vec<_>, Error>>()?;
    compare::sort(&mut keyed, is_on(reverse.as_ref()))?;
    meter::list(keyed.into_iter().map(|(_, pair)| pair).collect(), 0)
}

/// Returns the entries of a dict as tuples.
pub(super) fn pairs(value: &Value) -> Result<Vec<Value>, Error> {
    if value.kind() != ValueKind::Map {
        return Err(invalid("Can only get item pairs from a mapping."));
    }
    let keys = meter::items(value)?;
    keys.into_iter().map(|key| Sequence::value(Kind::Tuple, vec![key.clone(), value.get_item(&key)?], 0)).collect()
}

fn items(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind("items", [], &arguments[1..])?;
    lazy(if arguments[0].is_undefined() { Vec::new() } else { pairs(&arguments[0])? })
}

/// Attributes of Python's types are their methods; an item is none.
fn attr(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [name] = bind("attr", ["name"], &arguments[1..])?;
    let (value, name) = (&arguments[0], needed("attr", name)?);
    let name = python::to_str(&name)?;
    match value.kind() {
        ValueKind::Undefined => Err(invalid("an undefined value has no attributes")),
        ValueKind::Plain => value.get_attr(&name),
        _ => Ok(Method::of(value, &name).unwrap_or_default()),
    }
}

/// Returns the items of a value that is true; there are none in another, whatever it is.
fn walk_true(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { walk(value) } else { Ok(Vec::new()) }
}

fn map(state: &State, arguments: &[Value]) -> Result<Value, Error> {
    let (places, named) = divide(&arguments[1..]);
    let items = walk_true(&arguments[0])?;
    meter::room(2 * items.len() * ITEM_BYTES)?;
    let mut mapped = Vec::with_capacity(items.len());
    match places {
        [] => {
            let [attribute, default] = bind("map", ["attribute", "default"], &arguments[1..])?;
            let path = needed("map", attribute)?;
            let default = given(default);
            for item in items {
                mapped.push(attribute_of(&item, &path, default.as_ref())?);
            }
        }
        [filter, rest @ ..] => {
            let name = filter.as_str().ok_or_else(|| invalid("map takes the name of a filter"))?;
            for item in items {
                let mut given = vec![item];
                given.extend_from_slice(rest);
                given.extend(named.cloned());
                mapped.push(state.apply_filter(name, &given)?);
            }
        }
    }
    lazy(mapped)
}

/// How items are chosen.
struct Choice {
    by_attribute: bool,
    keeps: bool,
}

fn chosen(state: &State, what: &str, arguments: &[Value], choice: Choice) -> Result<Value, Error> {
    let (mut places, named) = divide(&arguments[1..]);
    let mut path = None;
    if choice.by_attribute {
        let (first, rest) = places.split_first().ok_or_else(|| invalid(format!("{what} needs an attribute")))?;
        (path, places) = (Some(first), rest);
    }
    let mut kept = Vec::new();
    for item in walk_true(&arguments[0])? {
        let value = path.map_or_else(|| Ok(item.clone()), |path| attribute_of(&item, path, None))?;
        let holds = match places {
            [] => value.is_true(),
            [test, rest @ ..] => {
                let name = test.as_str().ok_or_else(|| invalid(format!("{what} takes the name of a test")))?;
                let mut given = vec![value];
                given.extend_from_slice(rest);
                given.extend(named.cloned());
                state.perform_test(name, &given)?
            }
        };
        if holds == choice.keeps {
            kept.push(item);
        }
    }
    lazy(kept)
}
