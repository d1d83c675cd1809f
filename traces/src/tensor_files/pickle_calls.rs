//! Globals and calls of a pickle: which names have a meaning, which are kept as names, and which are refused.

use super::{Id, Machine, Node, Step, StorageRef, TensorRef};
use crate::tensor_files::element::Element;

/// Modules that no dump needs and every attack does.
const REFUSED: [&str; 20] = [
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "runpy",
    "socket",
    "shutil",
    "pty",
    "importlib",
    "ctypes",
    "pickle",
    "_pickle",
    "code",
    "commands",
    "webbrowser",
    "asyncio",
    "multiprocessing",
    "pip",
    "functools",
];
/// The builtins that are plain types.
const PLAIN: [&str; 14] = [
    "set",
    "frozenset",
    "list",
    "dict",
    "tuple",
    "int",
    "float",
    "bool",
    "str",
    "bytes",
    "bytearray",
    "slice",
    "complex",
    "object",
];

/// Element type of a storage class or of a `torch.dtype`.
fn element(name: &str) -> Option<Element> {
    Some(match name {
        "DoubleStorage" | "float64" | "double" => Element::F64,
        "FloatStorage" | "float32" | "float" => Element::F32,
        "HalfStorage" | "float16" | "half" => Element::F16,
        "BFloat16Storage" | "bfloat16" => Element::Bf16,
        "Float8_e4m3fnStorage" | "float8_e4m3fn" => Element::F8E4M3,
        "Float8_e5m2Storage" | "float8_e5m2" => Element::F8E5M2,
        "Float8_e4m3fnuzStorage" | "float8_e4m3fnuz" => Element::F8E4M3Fnuz,
        "Float8_e5m2fnuzStorage" | "float8_e5m2fnuz" => Element::F8E5M2Fnuz,
        "LongStorage" | "int64" | "long" => Element::I64,
        "IntStorage" | "int32" | "int" => Element::I32,
        "ShortStorage" | "int16" | "short" => Element::I16,
        "CharStorage" | "int8" => Element::I8,
        "UInt64Storage" | "uint64" => Element::U64,
        "UInt32Storage" | "uint32" => Element::U32,
        "UInt16Storage" | "uint16" => Element::U16,
        "ByteStorage" | "uint8" => Element::U8,
        "BoolStorage" | "bool" => Element::Bool,
        _ => return None,
    })
}

impl Machine<'_> {
    pub(super) fn global(&mut self, module: String, name: String) -> Step<()> {
        let first = module.split('.').next().unwrap_or_default();
        let builtin = matches!(first, "builtins" | "__builtin__");
        if REFUSED.contains(&first) || (builtin && !PLAIN.contains(&name.as_str())) {
            return Err(format!(
                "names `{module} {name}`, which no dump needs; nothing was executed, and the file is refused"
            ));
        }
        self.push(Node::Global(module, name));
        Ok(())
    }

    fn tuple(&self, id: Id) -> Step<Vec<Id>> {
        match self.node(id) {
            Node::Tuple(items) | Node::List(items) => Ok(items.clone()),
            _ => Err("expected a tuple".to_owned()),
        }
    }

    fn size(&self, id: Id) -> Step<usize> {
        match self.node(id) {
            Node::Int(number) => usize::try_from(*number)
                .map_err(|_| format!("{number} is no size, stride or offset")),
            _ => Err("expected an integer".to_owned()),
        }
    }

    fn sizes(&self, id: Id) -> Step<Vec<usize>> {
        self.tuple(id)?.into_iter().map(|item| self.size(item)).collect()
    }

    /// ("storage", class, key, location, count), in the older form with a view that is None.
    pub(super) fn persistent(&mut self) -> Step<()> {
        let id = self.pop()?;
        let items = self.tuple(id)?;
        let (kind, class, key, count) = match *items.as_slice() {
            [kind, class, key, _location, count] => (kind, class, key, count),
            [kind, class, key, _location, count, view] if matches!(self.node(view), Node::None) => {
                (kind, class, key, count)
            }
            _ => {
                return Err(format!(
                    "a persistent id of {} parts that names no storage",
                    items.len()
                ));
            }
        };
        let (Node::Text(kind), Node::Global(module, class), Node::Text(key)) =
            (self.node(kind), self.node(class), self.node(key))
        else {
            return Err("a persistent id that names no storage".to_owned());
        };
        if kind != "storage" || !module.starts_with("torch") {
            return Err(format!("a persistent id of kind `{kind}` and class `{module} {class}`"));
        }
        let element = match element(class) {
            None if class == "UntypedStorage" => None,
            None => {
                return Err(format!(
                    "storages of class `{class}` are not read; save floats or integers"
                ));
            }
            some => some,
        };
        let storage = StorageRef { key: key.clone(), element, count: self.size(count)? };
        if !self.storages.iter().any(|known| known.key == storage.key) {
            self.storages.push(storage.clone());
        }
        self.push(Node::Storage(storage));
        Ok(())
    }

    /// A call by REDUCE or NEWOBJ.
    pub(super) fn call(&mut self) -> Step<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (module, name) = match self.node(callee) {
            Node::Global(module, name) => (module.clone(), name.clone()),
            Node::Opaque(what) => {
                let what = what.clone();
                self.push(Node::Opaque(what));
                return Ok(());
            }
            _ => return Err("a call of something that is no global".to_owned()),
        };
        let arguments = self.tuple(arguments)?;
        let node = self.result(&module, &name, &arguments)?;
        self.push(node);
        Ok(())
    }

    fn result(&self, module: &str, name: &str, arguments: &[Id]) -> Step<Node> {
        let tensors = matches!(module, "torch._utils" | "torch._tensor" | "torch");
        Ok(match (name, arguments) {
            ("OrderedDict" | "defaultdict" | "dict", _)
                if matches!(module, "collections" | "builtins" | "__builtin__") =>
            {
                // Items, where given, are pairs.
                let mut dict = Vec::new();
                if let ("OrderedDict" | "dict", [items]) = (name, arguments) {
                    for pair in self.tuple(*items).unwrap_or_default() {
                        if let &[key, value] = self.tuple(pair)?.as_slice() {
                            dict.push((key, value));
                        }
                    }
                }
                Node::Dict(dict)
            }
            ("list" | "tuple" | "set" | "frozenset", [items]) if module.contains("builtin") => {
                Node::List(self.tuple(*items).unwrap_or_default())
            }
            ("Size", [items]) if module == "torch" => Node::Tuple(self.tuple(*items)?),
            ("_rebuild_tensor" | "_rebuild_tensor_v2", &[storage, offset, size, stride, ..])
                if tensors =>
            {
                self.tensor(storage, None, (offset, size, stride))?
            }
            ("_rebuild_tensor_v3", &[storage, offset, size, stride, _, _, dtype, ..])
                if tensors =>
            {
                self.tensor(storage, Some(dtype), (offset, size, stride))?
            }
            ("_rebuild_parameter" | "_rebuild_parameter_with_state", [data, ..]) if tensors => {
                self.node(*data).clone()
            }
            ("_rebuild_from_type_v2", &[function, _, inner, ..]) if tensors => {
                match self.node(function) {
                    Node::Global(module, name) if name != "_rebuild_from_type_v2" => {
                        self.result(module, name, &self.tuple(inner)?)?
                    }
                    _ => Node::Opaque(format!("{module} {name}")),
                }
            }
            _ => Node::Opaque(format!("{module} {name}")),
        })
    }

    fn tensor(
        &self,
        storage: Id,
        dtype: Option<Id>,
        (offset, size, stride): (Id, Id, Id),
    ) -> Step<Node> {
        let Node::Storage(storage) = self.node(storage) else {
            return Err("a tensor without a storage".to_owned());
        };
        let declared = match dtype.map(|id| self.node(id)) {
            Some(Node::Global(_, name)) => Some(
                element(name).ok_or_else(|| format!("tensors of dtype `{name}` are not read"))?,
            ),
            _ => storage.element,
        };
        let element = declared.ok_or("a tensor without an element type")?;
        let tensor = TensorRef {
            storage: storage.clone(),
            element,
            offset: self.size(offset)?,
            size: self.sizes(size)?,
            stride: self.sizes(stride)?,
        };
        if tensor.size.len() != tensor.stride.len() {
            return Err("a tensor with as many sizes as strides was expected".to_owned());
        }
        Ok(Node::Tensor(tensor))
    }
}
