//! A pickle interpreter, protocols 2 to 5, that builds plain values and executes nothing.
//!
//! A global is only a name. The few calls that make up a tensor have a meaning here; every other call gives an opaque value that
//! remembers the name, so that a dump whose metadata hold a device or an enumeration can be read all the same. Names that only an attack
//! needs are refused. Values live in an arena: shared and cyclic references cost nothing, nesting is no recursion, and memory is bounded
//! by the length of the pickle.

use std::collections::BTreeMap;

use super::element::Element;

#[path = "pickle_calls.rs"]
mod calls;

/// Index of a [`Node`].
pub(super) type Id = usize;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Tuple(Vec<Id>),
    /// A list or a set.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(String, String),
    Storage(StorageRef),
    Tensor(TensorRef),
    /// What is not read, with the name of its class or function.
    Opaque(String),
}

/// A storage by its key. Untyped storages have no element type and count bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageRef {
    pub(super) key: String,
    pub(super) element: Option<Element>,
    pub(super) count: usize,
}

/// A view of a storage; sizes, strides and offset count elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorRef {
    pub(super) storage: StorageRef,
    pub(super) element: Element,
    pub(super) offset: usize,
    pub(super) size: Vec<usize>,
    pub(super) stride: Vec<usize>,
}

/// A finished pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    pub(super) root: Id,
    /// Storages in the order in which they were first named.
    pub(super) storages: Vec<StorageRef>,
    /// Where the pickle ends.
    pub(super) end: usize,
}

impl Pickle {
    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).unwrap_or(&Node::None)
    }

    /// Interprets the pickle at the start of `bytes`; an error has its byte.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, (usize, String)> {
        let mut machine = Machine {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
            storages: Vec::new(),
        };
        loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    let Machine { nodes, storages, at: end, .. } = machine;
                    return Ok(Self { nodes, root, storages, end });
                }
                Err(what) => return Err((at, what)),
            }
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Id>,
    storages: Vec<StorageRef>,
}

type Step<T> = Result<T, String>;

impl<'a> Machine<'a> {
    /// One opcode; the root where it was STOP.
    fn step(&mut self) -> Step<Option<Id>> {
        let [opcode] = self.take()?;
        match opcode {
            0x80 => {
                let [protocol] = self.take()?;
                if protocol > 5 {
                    return Err(format!("pickle protocol {protocol}; up to 5 is read"));
                }
            }
            // FRAME: its length only helps a reader that buffers.
            0x95 => {
                let _: [u8; 8] = self.take()?;
            }
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'2' => {
                let top = self.pop()?;
                self.stack.extend([top, top]);
            }
            b'q' | b'r' | 0x94 => self.put(opcode)?,
            b'h' | b'j' => self.get(opcode)?,
            _ if self.scalar(opcode)? => {}
            _ => self.build(opcode)?,
        }
        Ok(None)
    }

    /// Opcodes that push one plain value; false where it is none of them.
    fn scalar(&mut self, opcode: u8) -> Step<bool> {
        let node = match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'K' => Node::Int(i128::from(self.take::<1>()?[0])),
            b'M' => Node::Int(u16::from_le_bytes(self.take()?).into()),
            b'J' => Node::Int(i32::from_le_bytes(self.take()?).into()),
            b'G' => Node::Float(f64::from_be_bytes(self.take()?)),
            0x8A => {
                let [length] = self.take()?;
                self.long(length.into())?
            }
            0x8B => {
                let length = u32::from_le_bytes(self.take()?);
                self.long(length.into())?
            }
            0x8C => {
                let [length] = self.take()?;
                self.text(length.into())?
            }
            b'X' => {
                let length = u32::from_le_bytes(self.take()?);
                self.text(length.into())?
            }
            0x8D => {
                let length = u64::from_le_bytes(self.take()?);
                self.text(length)?
            }
            b'U' | b'C' => {
                let [length] = self.take()?;
                self.binary(opcode, length.into())?
            }
            b'T' | b'B' => {
                let length = u32::from_le_bytes(self.take()?);
                self.binary(opcode, length.into())?
            }
            0x8E | 0x96 => {
                let length = u64::from_le_bytes(self.take()?);
                self.binary(opcode, length)?
            }
            _ => return Ok(false),
        };
        self.push(node);
        Ok(true)
    }

    /// Opcodes that make or fill containers, name globals, and call.
    fn build(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            b'}' => self.push(Node::Dict(Vec::new())),
            b']' | 0x8F => self.push(Node::List(Vec::new())),
            b')' => self.push(Node::Tuple(Vec::new())),
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items));
            }
            0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::List(items));
            }
            0x85..=0x87 => {
                let mut items = Vec::new();
                for _ in 0..opcode - 0x84 {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Node::Tuple(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Node::Text(module), Node::Text(name)) = (self.node(module), self.node(name))
                else {
                    return Err("a global whose name is no text".to_owned());
                };
                let (module, name) = (module.clone(), name.clone());
                self.global(module, name)?;
            }
            b'Q' => self.persistent()?,
            b'R' | 0x81 => self.call()?,
            // NEWOBJ_EX: keyword arguments belong to classes that are not read.
            0x92 => {
                self.pop()?;
                self.call()?;
            }
            // BUILD: the state of an object; what is read here has none that matters.
            b'b' => {
                self.pop()?;
                self.top()?;
            }
            other => {
                return Err(format!(
                    "opcode 0x{other:02x} does not occur in what torch.save writes"
                ));
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Step<[u8; N]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.first_chunk::<N>().ok_or("the pickle ends here")?;
        self.at += N;
        Ok(*taken)
    }

    fn slice(&mut self, length: u64) -> Step<&'a [u8]> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes =
            bytes.ok_or_else(|| format!("a value of {length} bytes reaches past the end"))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn text(&mut self, length: u64) -> Step<Node> {
        let text = std::str::from_utf8(self.slice(length)?).map_err(|_| "a string is not UTF-8")?;
        Ok(Node::Text(text.to_owned()))
    }

    /// Byte strings; the short Python 2 forms are text where they can be.
    fn binary(&mut self, opcode: u8, length: u64) -> Step<Node> {
        let bytes = self.slice(length)?;
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) if matches!(opcode, b'U' | b'T') => Node::Text(text.to_owned()),
            _ => Node::Opaque("bytes".to_owned()),
        })
    }

    fn long(&mut self, length: u64) -> Step<Node> {
        let bytes = self.slice(length)?;
        if bytes.len() > 16 {
            return Ok(Node::Opaque("a large integer".to_owned()));
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xFF } else { 0 }; 16];
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = *from;
        }
        Ok(Node::Int(i128::from_le_bytes(wide)))
    }

    fn line(&mut self) -> Step<String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or("a name without end")?;
        let text =
            std::str::from_utf8(self.slice(end as u64)?).map_err(|_| "a name is not UTF-8")?;
        self.at += 1;
        Ok(text.to_owned())
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    /// Values below the last mark are out of reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Step<Id> {
        let reachable = self.stack.len() > self.floor();
        self.stack.pop().filter(|_| reachable).ok_or_else(|| "the stack is empty".to_owned())
    }

    fn pop_mark(&mut self) -> Step<Vec<Id>> {
        let mark = self.marks.pop().ok_or("no mark")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&mut self) -> Step<&mut Node> {
        let reachable = self.stack.len() > self.floor();
        let id = self.stack.last().copied().filter(|_| reachable).ok_or("the stack is empty")?;
        self.nodes.get_mut(id).ok_or_else(|| "the stack is broken".to_owned())
    }

    fn append(&mut self, items: Vec<Id>) -> Step<()> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            Node::Opaque(_) => {}
            _ => return Err("append to something that is no list".to_owned()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Step<()> {
        let (pairs, odd) = items.as_chunks::<2>();
        match self.top()? {
            Node::Dict(dict) if odd.is_empty() => {
                dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            Node::Opaque(_) => {}
            _ => return Err("set items of something that is no dict".to_owned()),
        }
        Ok(())
    }

    fn put(&mut self, opcode: u8) -> Step<()> {
        let key = match opcode {
            b'q' => self.take::<1>()?[0].into(),
            b'r' => u32::from_le_bytes(self.take()?),
            _ => u32::try_from(self.memo.len()).map_err(|_| "too many memo entries")?,
        };
        let id = *self.stack.last().ok_or("the stack is empty")?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn get(&mut self, opcode: u8) -> Step<()> {
        let key = if opcode == b'h' {
            self.take::<1>()?[0].into()
        } else {
            u32::from_le_bytes(self.take()?)
        };
        let id = *self.memo.get(&key).ok_or_else(|| format!("memo {key} was never written"))?;
        self.stack.push(id);
        Ok(())
    }

    fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).unwrap_or(&Node::None)
    }
}
