//! A pickle interpreter for protocol 2 as `torch.save` writes it.
//!
//! It builds plain values. A global is only a name, and calling one is possible in the two ways that a tensor needs:
//! anything else is an error that names it. Values live in an arena, so that shared and even cyclic references cost
//! nothing; memory is bounded by the length of the pickle.

use std::collections::BTreeMap;

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
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(Tensor),
}

/// The globals that occur in statistics files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    RebuildTensor,
    OrderedDict,
    Storage(Element),
}

/// Element type of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Float,
    Double,
    Half,
    BFloat16,
}

/// A storage by reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Storage {
    pub(super) key: String,
    pub(super) element: Element,
    pub(super) numel: usize,
}

/// A view into a storage; sizes, strides and offset count elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) storage: Storage,
    pub(super) offset: usize,
    pub(super) size: Vec<usize>,
    pub(super) stride: Vec<usize>,
}

/// A finished pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    pub(super) root: Id,
}

/// What is wrong and at which byte of the pickle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("data.pkl, byte {at}: {what}")]
pub(super) struct PickleError {
    pub(super) at: usize,
    pub(super) what: String,
}

impl Pickle {
    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).unwrap_or(&Node::None)
    }

    /// Interprets `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, PickleError> {
        let mut machine = Machine {
            bytes,
            at: 0,
            nodes: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: BTreeMap::new(),
        };
        loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(Self { nodes: machine.nodes, root }),
                Err(what) => return Err(PickleError { at, what }),
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
}

impl Machine<'_> {
    /// One opcode; the root where it was STOP.
    fn step(&mut self) -> Result<Option<Id>, String> {
        let [opcode] = self.take()?;
        match opcode {
            0x80 => {
                let [protocol] = self.take()?;
                if protocol > 2 {
                    return Err(format!(
                        "pickle protocol {protocol}; save with torch's default, 2"
                    ));
                }
            }
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'K' => {
                let [byte] = self.take()?;
                self.push(Node::Int(byte.into()));
            }
            b'M' => {
                let number = u16::from_le_bytes(self.take()?);
                self.push(Node::Int(number.into()));
            }
            b'J' => {
                let number = i32::from_le_bytes(self.take()?);
                self.push(Node::Int(number.into()));
            }
            0x8A => self.long()?,
            b'G' => {
                let number = f64::from_be_bytes(self.take()?);
                self.push(Node::Float(number));
            }
            b'X' => {
                let len = u32::from_le_bytes(self.take()?);
                let text = self.text(len)?;
                self.push(Node::Text(text));
            }
            b'q' | b'r' => self.put(opcode == b'q')?,
            b'h' | b'j' => self.get(opcode == b'h')?,
            _ => self.build(opcode)?,
        }
        Ok(None)
    }

    /// Opcodes that make or fill containers, and calls.
    fn build(&mut self, opcode: u8) -> Result<(), String> {
        match opcode {
            b'}' => self.push(Node::Dict(Vec::new())),
            b']' => self.push(Node::List(Vec::new())),
            b')' => self.push(Node::Tuple(Vec::new())),
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items));
            }
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let start =
                    self.floor().checked_add(count).filter(|&need| need <= self.stack.len());
                let start = start.map(|_| self.stack.len() - count).ok_or("stack is empty")?;
                let items = self.stack.split_off(start);
                self.push(Node::Tuple(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
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
            b'c' => self.global()?,
            b'Q' => self.persistent()?,
            b'R' => self.call()?,
            other => {
                return Err(format!("opcode 0x{other:02x} does not occur in statistics files"));
            }
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.first_chunk::<N>().ok_or("the pickle ends here")?;
        self.at += N;
        Ok(*taken)
    }

    fn text(&mut self, len: u32) -> Result<String, String> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or_else(|| format!("a string of {len} bytes reaches past the end"))?;
        let text = std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")?;
        self.at += bytes.len();
        Ok(text.to_owned())
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or("a name without end")?;
        let text = self.text(u32::try_from(end).map_err(|_| "a name too long")?)?;
        self.at += 1;
        Ok(text)
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    /// Values below the last mark are out of reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id, String> {
        if self.stack.len() <= self.floor() {
            return Err("stack is empty".to_owned());
        }
        self.stack.pop().ok_or_else(|| "stack is empty".to_owned())
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("no mark")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn top(&mut self) -> Result<&mut Node, String> {
        if self.stack.len() <= self.floor() {
            return Err("stack is empty".to_owned());
        }
        let id = self.stack.last().copied().ok_or("stack is empty")?;
        self.nodes.get_mut(id).ok_or_else(|| "stack is broken".to_owned())
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), String> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            _ => return Err("append to something that is no list".to_owned()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<(), String> {
        let (pairs, odd) = items.as_chunks::<2>();
        match self.top()? {
            Node::Dict(dict) if odd.is_empty() => {
                dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            _ => return Err("set items of something that is no dict".to_owned()),
        }
        Ok(())
    }

    fn long(&mut self) -> Result<(), String> {
        let [len] = self.take()?;
        if len > 16 {
            return Err(format!("an integer of {len} bytes"));
        }
        let mut bytes = Vec::new();
        for _ in 0..len {
            let [byte] = self.take()?;
            bytes.push(byte);
        }
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xFF } else { 0 }; 16];
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = from;
        }
        self.push(Node::Int(i128::from_le_bytes(wide)));
        Ok(())
    }

    fn memo_key(&mut self, short: bool) -> Result<u32, String> {
        if short {
            let [byte] = self.take()?;
            Ok(byte.into())
        } else {
            Ok(u32::from_le_bytes(self.take()?))
        }
    }

    fn put(&mut self, short: bool) -> Result<(), String> {
        let key = self.memo_key(short)?;
        let id = *self.stack.last().ok_or("stack is empty")?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn get(&mut self, short: bool) -> Result<(), String> {
        let key = self.memo_key(short)?;
        let id = *self.memo.get(&key).ok_or_else(|| format!("memo {key} was never written"))?;
        self.stack.push(id);
        Ok(())
    }

    fn global(&mut self) -> Result<(), String> {
        let (module, name) = (self.line()?, self.line()?);
        let global = match (module.as_str(), name.as_str()) {
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch", "FloatStorage") => Global::Storage(Element::Float),
            ("torch", "DoubleStorage") => Global::Storage(Element::Double),
            ("torch", "HalfStorage") => Global::Storage(Element::Half),
            ("torch", "BFloat16Storage") => Global::Storage(Element::BFloat16),
            _ => {
                return Err(format!(
                    "global `{module} {name}` has no place in a statistics file; nothing was executed"
                ));
            }
        };
        self.push(Node::Global(global));
        Ok(())
    }

    fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).unwrap_or(&Node::None)
    }

    fn tuple(&self, id: Id) -> Result<Vec<Id>, String> {
        match self.node(id) {
            Node::Tuple(items) => Ok(items.clone()),
            _ => Err("expected a tuple".to_owned()),
        }
    }

    fn size(&self, id: Id) -> Result<usize, String> {
        match self.node(id) {
            Node::Int(number) => usize::try_from(*number)
                .map_err(|_| format!("{number} is no size, stride or offset")),
            _ => Err("expected an integer".to_owned()),
        }
    }

    /// ("storage", class, key, location, numel).
    fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let items = self.tuple(id)?;
        let &[kind, class, key, _location, numel] = items.as_slice() else {
            return Err(format!("a persistent id of {} parts, expected 5", items.len()));
        };
        let (Node::Text(kind), Node::Global(Global::Storage(element)), Node::Text(key)) =
            (self.node(kind), self.node(class), self.node(key))
        else {
            return Err("a persistent id that names no storage".to_owned());
        };
        if kind != "storage" {
            return Err(format!("a persistent id of kind `{kind}`"));
        }
        let storage = Storage { key: key.clone(), element: *element, numel: self.size(numel)? };
        self.push(Node::Storage(storage));
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let arguments = self.tuple(arguments)?;
        let node = match (self.node(callee), arguments.as_slice()) {
            (Node::Global(Global::OrderedDict), []) => Node::Dict(Vec::new()),
            (Node::Global(Global::RebuildTensor), &[storage, offset, size, stride, _, _])
            | (Node::Global(Global::RebuildTensor), &[storage, offset, size, stride, _, _, _]) => {
                self.tensor(storage, offset, size, stride)?
            }
            (Node::Global(global), _) => {
                return Err(format!("{global:?} called with {} arguments", arguments.len()));
            }
            _ => return Err("a call of something that is no global".to_owned()),
        };
        self.push(node);
        Ok(())
    }

    fn tensor(&self, storage: Id, offset: Id, size: Id, stride: Id) -> Result<Node, String> {
        let Node::Storage(storage) = self.node(storage) else {
            return Err("a tensor without a storage".to_owned());
        };
        let sizes = |id| -> Result<Vec<usize>, String> {
            self.tuple(id)?.into_iter().map(|item| self.size(item)).collect()
        };
        let (size, stride) = (sizes(size)?, sizes(stride)?);
        let tensor = Tensor { storage: storage.clone(), offset: self.size(offset)?, size, stride };
        tensor.check()?;
        Ok(Node::Tensor(tensor))
    }
}

impl Tensor {
    /// Every element lies in the storage.
    fn check(&self) -> Result<(), String> {
        if self.size.len() != self.stride.len() {
            return Err("a tensor with as many sizes as strides was expected".to_owned());
        }
        let numel = self.storage.numel;
        if self.size.contains(&0) {
            return Ok(());
        }
        let last =
            self.size.iter().zip(&self.stride).try_fold(self.offset, |at, (size, stride)| {
                at.checked_add((size - 1).checked_mul(*stride)?)
            });
        match last {
            Some(last) if last < numel => Ok(()),
            _ => Err(format!(
                "a tensor of size {:?}, stride {:?}, offset {} reaches past its storage of {numel} elements",
                self.size, self.stride, self.offset
            )),
        }
    }
}
