//! Pickles without execution: the few opcodes that plain data are written in.
//!
//! Python's own reader runs whatever a pickle names, so that a file of weights can
//! be a program. This one is a stack machine over values: names of functions stay
//! names, and a call is carried out only if it is one of a handful that put tensors
//! together, which is done here. Everything else is refused by its name.
//!
//! Values live in one list and refer to each other by place: no file, however
//! deeply nested or circular, can make reading or dropping it recurse.

use std::collections::HashMap;

/// Most arguments of a call, and sides of a shape.
const MOST_ARGUMENTS: usize = 16;

/// Place of a value in a [`Pickle`].
pub(super) type Id = usize;

/// What a pickle can hold here.
#[derive(Debug, Clone)]
pub(super) enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// The name of a class or function, `module.name`.
    Name(String),
    /// What the program that wrote the pickle keeps elsewhere: here, a tensor's storage.
    Elsewhere(Id),
    /// The result of a call that is carried out by whoever reads the values.
    Call(Call, Vec<Id>),
}

/// Calls that are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)`
    Tensor,
    /// `torch._utils._rebuild_parameter(tensor, …)`
    Parameter,
}

/// Functions and classes that a file of weights needs; every other name is refused when it is called.
fn known(name: &str) -> Option<Known> {
    Some(match name {
        "torch._utils._rebuild_tensor_v2" => Known::Call(Call::Tensor),
        "torch._utils._rebuild_parameter" => Known::Call(Call::Parameter),
        "collections.OrderedDict" => Known::Dict,
        "torch.Size" => Known::Tuple,
        _ => return None,
    })
}

enum Known {
    Call(Call),
    Dict,
    Tuple,
}

/// A pickle that was read.
pub(super) struct Pickle {
    values: Vec<Value>,
    /// What it holds.
    pub(super) root: Id,
}

impl Pickle {
    /// A value by its place.
    pub(super) fn get(&self, id: Id) -> &Value {
        self.values.get(id).unwrap_or(&Value::None)
    }

    /// Reads a pickle of protocol 2 to 5; the error says what is wrong with it, or what was refused.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }.run()
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    fn run(mut self) -> Result<Pickle, String> {
        loop {
            let place = self.at;
            let opcode = self.take::<1>()?[0];
            if opcode == b'.' {
                let root = self.pop()?;
                return Ok(Pickle { values: self.values, root });
            }
            self.step(opcode).map_err(|problem| format!("{problem} (at byte {place} of its pickle)"))?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            // Protocol and frames say how to read on; there is nothing to do.
            0x80 => drop(self.take::<1>()?),
            0x95 => drop(self.take::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Bool),
            b'K' => {
                let [byte] = self.take::<1>()?;
                self.push(Value::Int(byte.into()));
            }
            b'M' => {
                let bytes = self.take::<2>()?;
                self.push(Value::Int(u16::from_le_bytes(bytes).into()));
            }
            b'J' => {
                let bytes = self.take::<4>()?;
                self.push(Value::Int(i32::from_le_bytes(bytes).into()));
            }
            0x8a => self.long()?,
            b'G' => {
                self.take::<8>()?;
                self.push(Value::Float);
            }
            0x8c => {
                let [length] = self.take::<1>()?;
                self.text(length.into())?;
            }
            b'X' => {
                let length = self.take::<4>()?;
                self.text(u32::from_le_bytes(length).into())?;
            }
            0x8d => {
                let length = self.take::<8>()?;
                self.text(u64::from_le_bytes(length))?;
            }
            b')' => self.push(Value::Tuple(Vec::new())),
            b']' => self.push(Value::List(Vec::new())),
            b'}' => self.push(Value::Dict(Vec::new())),
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.push(Value::Tuple(items));
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items));
            }
            b'l' => {
                let items = self.pop_mark()?;
                self.push(Value::List(items));
            }
            b'd' => {
                let items = self.pop_mark()?;
                self.push(Value::Dict(pairs(&items)));
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(&[item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.extend_list(&items)?;
            }
            b's' => {
                let items = self.pop_many(2)?;
                self.extend_dict(&items)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.extend_dict(&items)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Value::Name(format!("{module}.{name}")));
            }
            0x93 => {
                let items = self.pop_many(2)?;
                match items.iter().map(|&id| &self.values[id]).collect::<Vec<_>>()[..] {
                    [Value::Text(module), Value::Text(name)] => {
                        let name = format!("{module}.{name}");
                        self.push(Value::Name(name));
                    }
                    _ => return Err("names something that is no text".into()),
                }
            }
            b'R' | 0x81 => self.call()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Elsewhere(id));
            }
            b'b' => self.build()?,
            b'0' => drop(self.pop()?),
            b'q' => {
                let [key] = self.take::<1>()?;
                self.remember(key.into())?;
            }
            b'r' => {
                let key = self.take::<4>()?;
                self.remember(u32::from_le_bytes(key))?;
            }
            0x94 => self.remember(u32::try_from(self.memo.len()).unwrap_or(u32::MAX))?,
            b'h' => {
                let [key] = self.take::<1>()?;
                self.recall(key.into())?;
            }
            b'j' => {
                let key = self.take::<4>()?;
                self.recall(u32::from_le_bytes(key))?;
            }
            other => return Err(format!("opcode {other:#04x} is not one that weights are written with")),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id, String> {
        // A mark hides what lies below it.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("takes a value where none is".into());
        }
        self.stack.pop().ok_or_else(|| "takes a value where none is".into())
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        Ok(items)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("ends a list that was not begun")?;
        if mark > self.stack.len() {
            return Err("takes a value where none is".into());
        }
        Ok(self.stack.split_off(mark))
    }

    /// The value on top, which stays there.
    fn top(&mut self) -> Result<&mut Value, String> {
        let id = self.stack.last().copied().ok_or("takes a value where none is")?;
        self.values.get_mut(id).ok_or_else(|| "takes a value where none is".into())
    }

    fn extend_list(&mut self, items: &[Id]) -> Result<(), String> {
        match self.top()? {
            Value::List(list) => list.extend_from_slice(items),
            _ => return Err("adds to something that is no list".into()),
        }
        Ok(())
    }

    fn extend_dict(&mut self, items: &[Id]) -> Result<(), String> {
        match self.top()? {
            Value::Dict(dict) => dict.extend(pairs(items)),
            _ => return Err("adds to something that is no dictionary".into()),
        }
        Ok(())
    }

    /// A call of a function, or the making of an object, with a tuple of arguments.
    fn call(&mut self) -> Result<(), String> {
        let items = self.pop_many(2)?;
        let (Value::Name(name), Value::Tuple(arguments)) = (&self.values[items[0]], &self.values[items[1]]) else {
            return Err("calls something that is no function".into());
        };
        // Copied below: a file could have a long tuple copied for every three of its bytes.
        if arguments.len() > MOST_ARGUMENTS {
            return Err(format!("calls `{name}` with {} arguments", arguments.len()));
        }
        let value = match known(name) {
            Some(Known::Call(call)) => Value::Call(call, arguments.clone()),
            Some(Known::Dict) => Value::Dict(Vec::new()),
            Some(Known::Tuple) => match arguments.first().map(|&id| &self.values[id]) {
                Some(Value::Tuple(items) | Value::List(items)) if items.len() <= MOST_ARGUMENTS => {
                    Value::Tuple(items.clone())
                }
                _ => Value::Tuple(Vec::new()),
            },
            None => {
                return Err(format!(
                    "refused: loading it would call `{name}`, which is no part of plain weights. Save `model.state_dict()` \
                     alone: a whole model, or anything else, is a program"
                ));
            }
        };
        self.push(value);
        Ok(())
    }

    /// Attributes put on an object: of a dictionary, PyTorch's versions, which are of no use here.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        match self.top()? {
            Value::Dict(_) | Value::Call(..) => Ok(()),
            _ => Err("refused: it sets attributes of an object, which plain weights do not need".into()),
        }
    }

    fn remember(&mut self, key: u32) -> Result<(), String> {
        let id = self.stack.last().copied().ok_or("remembers a value where none is")?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), String> {
        let id = self.memo.get(&key).copied().ok_or("recalls a value that it did not remember")?;
        self.stack.push(id);
        Ok(())
    }

    /// A whole number of up to eight bytes.
    fn long(&mut self) -> Result<(), String> {
        let [length] = self.take::<1>()?;
        let bytes = self.slice(length.into())?;
        if bytes.len() > 8 {
            return Err("holds a number of more than 64 bits".into());
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(whole)));
        Ok(())
    }

    fn text(&mut self, length: u64) -> Result<(), String> {
        let bytes = self.slice(length)?;
        let text = std::str::from_utf8(bytes).map_err(|_| "holds text that is not UTF-8")?.to_owned();
        self.push(Value::Text(text));
        Ok(())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or("ends within a name")?;
        let text = std::str::from_utf8(&rest[..length]).map_err(|_| "holds text that is not UTF-8")?.to_owned();
        self.at += length + 1;
        Ok(text)
    }

    fn slice(&mut self, length: u64) -> Result<&[u8], String> {
        let rest = &self.bytes[self.at..];
        let length = usize::try_from(length).ok().filter(|&length| length <= rest.len());
        let length = length.ok_or("ends in the middle of a value")?;
        self.at += length;
        Ok(&rest[..length])
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.slice(N as u64)?;
        <[u8; N]>::try_from(bytes).map_err(|_| "ends in the middle of a value".into())
    }
}

/// Keys and values in turn; an odd one at the end is dropped.
fn pairs(items: &[Id]) -> Vec<(Id, Id)> {
    items.as_chunks::<2>().0.iter().map(|pair| (pair[0], pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(bytes: &[u8]) -> String {
        Pickle::read(bytes).map(|pickle| pickle.root).unwrap_err()
    }

    #[test]
    fn calls_are_refused_by_their_name() {
        // What `pickle.dumps` makes of an object whose `__reduce__` is (os.system, ("…",)).
        let hostile = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00echo\x85R.";
        assert!(refusal(hostile).contains("would call `posix.system`"), "{}", refusal(hostile));
        let modern = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.";
        assert!(refusal(modern).contains("would call `builtins.eval`"), "{}", refusal(modern));
        let object = b"\x80\x02c__main__\nNet\n)\x81}b.";
        assert!(refusal(object).contains("`__main__.Net`"), "{}", refusal(object));
        // Named and never called, it is harmless and stays a name.
        let named = Pickle::read(b"\x80\x02cposix\nsystem\n.").unwrap();
        assert!(matches!(named.get(named.root), Value::Name(name) if name == "posix.system"));
    }

    #[test]
    fn plain_values_are_read() {
        let pickle =
            Pickle::read(b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x07X\x01\x00\x00\x00bJ\xff\xff\xff\xffu.").unwrap();
        let Value::Dict(items) = pickle.get(pickle.root) else { panic!("no dictionary") };
        let numbers: Vec<i64> = items
            .iter()
            .filter_map(|&(_, id)| if let Value::Int(number) = pickle.get(id) { Some(*number) } else { None })
            .collect();
        assert_eq!(numbers, [7, -1]);
        let long = Pickle::read(b"\x80\x02\x8a\x05\x00\x00\x00\x00\x80.").unwrap();
        assert!(matches!(long.get(long.root), Value::Int(number) if *number == -(1 << 39)));
    }

    #[test]
    fn nothing_hostile_panics_or_recurses() {
        for bytes in
            [&b""[..], b".", b"(", b"t.", b"\x85.", b"h\x00.", b"a.", b"X\xff\xff\xff\xffab", b"(q\x00", b"]a."]
        {
            assert!(Pickle::read(bytes).is_err(), "{bytes:?}");
        }
        // A million lists in each other, and a list that holds itself.
        let mut deep = vec![b']'; 1_000_000];
        deep.extend(vec![b'a'; 999_999]);
        deep.push(b'.');
        assert!(Pickle::read(&deep).is_ok());
        assert!(Pickle::read(b"]q\x00h\x00a.").is_ok());
    }
}
